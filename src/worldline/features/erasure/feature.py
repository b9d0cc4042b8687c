"""What this feature brings to the core."""

from __future__ import annotations

from worldline.features.erasure.scrub_job import ScrubJob
from worldline.runtime.feature import Feature

ERASURE = Feature(name="erasure", janitor_jobs=(ScrubJob,))
