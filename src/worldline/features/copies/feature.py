"""What this feature brings to the core."""

from __future__ import annotations

from worldline.features.copies.dormant_worlds import DormantCopyGuard
from worldline.features.copies.job import ImportSweepJob
from worldline.runtime.feature import Feature

COPIES = Feature(name="copies", janitor_jobs=(ImportSweepJob,), status_guards=(DormantCopyGuard(),))
