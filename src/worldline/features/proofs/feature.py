"""What this feature brings to the core."""

from __future__ import annotations

from worldline.features.proofs.job import proofs
from worldline.runtime.feature import Feature

PROOFS = Feature(name="proofs", holder_jobs=(proofs,))
