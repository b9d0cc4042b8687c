"""What this feature brings to the core."""

from __future__ import annotations

from worldline.features.receipts import checks
from worldline.features.receipts.receipt_signature import Ed25519Receipts
from worldline.runtime.feature import Feature

RECEIPTS = Feature(
    name="receipts",
    receipts=Ed25519Receipts(),
    history_checks=(checks.SignatureCheck(),),
)
