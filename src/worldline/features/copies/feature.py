"""What this feature brings to the core."""

from __future__ import annotations

from worldline.features.copies import checks, dormant_keyspace, keyspace
from worldline.features.copies.dormant_worlds import DormantCopyGuard
from worldline.features.copies.job import ImportSweepJob
from worldline.keys.space import InStore, InUniverse, InWorld
from worldline.runtime.feature import Feature
from worldline.runtime.feature_checks import RecordReaders

COPIES = Feature(
    name="copies",
    janitor_jobs=(ImportSweepJob,),
    status_guards=(DormantCopyGuard(),),
    readers=(
        RecordReaders(InStore.RESTORING, (keyspace.COPYING,)),
        RecordReaders(InStore.BACKUP, (keyspace.COPYING,)),
        RecordReaders(InUniverse.IMPORT, (keyspace.COPYING,)),
        RecordReaders(InWorld.HELD, (dormant_keyspace.HELD,)),
    ),
    reasons=(checks.CopyReasons(),),
    commands={
        "export": "worldline.features.copies.commands:export",
        "import": "worldline.features.copies.commands:import_",
        "backup": "worldline.features.copies.backup_commands:backup",
        "restore": "worldline.features.copies.backup_commands:restore",
    },
)
