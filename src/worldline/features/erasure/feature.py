"""What this feature brings to the core."""

from __future__ import annotations

from worldline.features.erasure import keyspace, scrub_keyspace
from worldline.features.erasure.scrub_job import ScrubJob
from worldline.keys.space import InStore
from worldline.runtime.feature import Feature
from worldline.runtime.feature_checks import RecordReaders

ERASURE = Feature(
    name="erasure",
    janitor_jobs=(ScrubJob,),
    readers=(
        RecordReaders(InStore.SCRUBS, (scrub_keyspace.RECORD,), counters=(scrub_keyspace.COUNT,)),
        RecordReaders(InStore.LEDGER, (keyspace.ENTRY,)),
    ),
    commands={
        "erase": "worldline.features.erasure.commands:erase",
        "scrub": "worldline.features.erasure.commands:scrub",
    },
)
