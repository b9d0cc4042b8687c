"""What this feature brings to the core."""

from __future__ import annotations

from worldline.features.deletion.job import WorldRemovalJob
from worldline.features.deletion.universe_job import UniverseRemovalJob
from worldline.runtime.feature import Feature

DELETION = Feature(name="deletion", janitor_jobs=(WorldRemovalJob,), store_jobs=(UniverseRemovalJob,))
