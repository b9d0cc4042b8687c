"""What this feature brings to the core."""

from __future__ import annotations

from worldline.features.collection.job import CollectionJob
from worldline.runtime.feature import Feature

COLLECTION = Feature(name="collection", janitor_jobs=(CollectionJob,))
