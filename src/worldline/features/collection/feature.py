"""What this feature brings to the core."""

from __future__ import annotations

from worldline.features.collection import keyspace
from worldline.features.collection.job import CollectionJob
from worldline.keys.space import InUniverse
from worldline.runtime.feature import Feature
from worldline.runtime.feature_checks import RecordReaders

COLLECTION = Feature(
    name="collection",
    janitor_jobs=(CollectionJob,),
    readers=(
        RecordReaders(InUniverse.COLLECTION, (keyspace.COLLECTION,)),
        RecordReaders(InUniverse.HOLDS, (keyspace.HOLDS,)),
        RecordReaders(InUniverse.CONDEMNED, (keyspace.CONDEMNED,)),
    ),
    commands={
        "gc": "worldline.features.collection.commands:gc",
    },
)
