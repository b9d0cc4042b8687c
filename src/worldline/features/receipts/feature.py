"""What this feature brings to the core."""

from __future__ import annotations

from worldline.features.receipts import checks
from worldline.runtime.feature import Feature

RECEIPTS = Feature(
    name="receipts",
    history_checks=(checks.SignatureCheck(),),
)
