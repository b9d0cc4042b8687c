"""What this feature brings to the core."""

from __future__ import annotations

from worldline.features.encryption import checks, codec_opening, keyspace, master_key_keyspace
from worldline.features.encryption.kept_key_guard import KeptKeyGuard
from worldline.keys.space import InStore, InUniverse
from worldline.runtime.feature import Feature
from worldline.runtime.feature_checks import RecordReaders

ENCRYPTION = Feature(
    name="encryption",
    wrap_store=codec_opening.SEALING,
    status_guards=(KeptKeyGuard(),),
    readers=(
        RecordReaders(InStore.ENCRYPTION, (master_key_keyspace.VALUE,)),
        RecordReaders(InUniverse.DATA_KEY, (keyspace.VALUE,)),
        RecordReaders(InUniverse.WORLD_KEY, (keyspace.VALUE,)),
    ),
    history_checks=(checks.KeyKept(),),
    commands={
        "new-key": "worldline.features.encryption.commands:new_key",
        "keys": "worldline.features.encryption.commands:keys",
        "rotate-keys": "worldline.features.encryption.commands:rotate_keys",
    },
)
