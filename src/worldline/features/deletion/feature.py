"""What this feature brings to the core."""

from __future__ import annotations

from worldline.features.deletion import checks, universe_keyspace
from worldline.features.deletion.job import WorldRemovalJob
from worldline.features.deletion.universe_job import UniverseRemovalJob
from worldline.keys.space import InStore
from worldline.runtime.feature import Feature
from worldline.runtime.feature_checks import RecordReaders

DELETION = Feature(
    name="deletion",
    janitor_jobs=(WorldRemovalJob,),
    store_jobs=(UniverseRemovalJob,),
    checks=(checks.UnfinishedDeletions(), checks.ErasedKeys()),
    readers=(RecordReaders(InStore.UNIVERSE_DELETION, (universe_keyspace.DELETION,)),),
    reasons=(checks.DeletionReasons(),),
    commands={
        "ledger": "worldline.features.deletion.ledger_commands:ledger",
        "delete": "worldline.features.deletion.commands:delete",
        "universe delete": "worldline.features.deletion.commands:delete_universe",
    },
)
