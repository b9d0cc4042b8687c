"""What this feature brings to the core."""

from __future__ import annotations

from worldline.features.copies.dormant_worlds import DormantCopyGuard
from worldline.runtime.feature import Feature

COPIES = Feature(name="copies", status_guards=(DormantCopyGuard(),))
