"""What this feature brings to the core."""

from __future__ import annotations

from worldline.features.compaction.job import Compactions
from worldline.runtime.feature import Feature

COMPACTION = Feature(name="compaction", holder_jobs=(Compactions,))
