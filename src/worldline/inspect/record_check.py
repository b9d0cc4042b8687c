"""Can every record be read that no other check of `worldline doctor` reads?

Processes leave out a name or a log entry that they cannot read, and many records are read by none until they are asked
for. So nothing else says that one is damaged. The table of keyspaces says which are read here (`records`).

Counters are not looked at: they have no envelope, and any eight bytes are one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from worldline.base import errors, limits
from worldline.client import listing
from worldline.client.connection import Connection
from worldline.codec import frame, tuples
from worldline.features.collection import keyspace as collection_keyspace
from worldline.features.copies import dormant_keyspace
from worldline.features.copies import keyspace as copy_keyspace
from worldline.features.deletion import universe_keyspace
from worldline.features.encryption import keyspace as encryption_keyspace
from worldline.features.encryption import master_key_keyspace
from worldline.features.erasure import keyspace as erasure_keyspace
from worldline.features.erasure import scrub_keyspace
from worldline.features.quotas import keyspace as quota_keyspace
from worldline.keys import (
    age,
    inbox,
    keyspace_table,
    personal_subjects,
    space,
    traces,
    universe_settings,
    universes,
    worlds,
)
from worldline.keys.space import InStore, InUniverse, InWorld
from worldline.model import ids
from worldline.store import kv

PAGE = 1_000
CHECK = "records"  # its name in the table of keyspaces

_Values = tuple[space.ValueCodec[Any], ...]

_IN_STORE: dict[InStore, _Values] = {
    InStore.UNIVERSE_NAME: (universes.NAME,),
    InStore.UNIVERSE_DELETION: (universe_keyspace.DELETION,),
    InStore.ENCRYPTION: (master_key_keyspace.VALUE,),
    InStore.RESTORING: (copy_keyspace.COPYING,),
    InStore.BACKUP: (copy_keyspace.COPYING,),
    InStore.SCRUBS: (scrub_keyspace.RECORD,),
    InStore.LEDGER: (erasure_keyspace.ENTRY,),
}
_IN_UNIVERSE: dict[InUniverse, _Values] = {
    InUniverse.META: (universes.META,),
    InUniverse.GENERATION: (universes.GENERATION,),
    InUniverse.NAME: (worlds.NAME,),
    InUniverse.COLLECTION: (collection_keyspace.COLLECTION,),
    InUniverse.HOLDS: (collection_keyspace.HOLDS,),
    InUniverse.CONDEMNED: (collection_keyspace.CONDEMNED,),
    InUniverse.SUBJECT: (personal_subjects.ERASURES,),
    InUniverse.DATA_KEY: (encryption_keyspace.VALUE,),
    InUniverse.WORLD_KEY: (encryption_keyspace.VALUE,),
    InUniverse.IMPORT: (copy_keyspace.COPYING,),
    InUniverse.QUOTAS: (quota_keyspace.QUOTAS, quota_keyspace.USAGE),
    InUniverse.QUOTA_LOG: (quota_keyspace.QUOTA_CHANGE,),
    InUniverse.AGE: (age.AGE,),
    InUniverse.SETTINGS: (universe_settings.SETTINGS,),
    InUniverse.GRANTS: (universes.GRANTS,),
    InUniverse.GRANT_LOG: (universes.GRANT_CHANGE,),
}
_IN_WORLD: dict[InWorld, _Values] = {
    InWorld.SEEN: (inbox.SEEN,),
    InWorld.DEAD: (inbox.DEAD,),
    InWorld.TRACE: (traces.KEPT,),
    InWorld.HELD: (dormant_keyspace.HELD,),
    InWorld.BROUGHT: (inbox.BROUGHT,),
}
_ALL = (*_IN_STORE, *_IN_UNIVERSE, *_IN_WORLD)
# At import: a new keyspace that names this check and is in no table above stops every test.
assert [each.place for each in keyspace_table.KEYSPACES if CHECK in each.checks] == [*_ALL], "a record is read by none"

_COUNTERS = (scrub_keyspace.COUNT,)


class DamagedRecord(msgspec.Struct, frozen=True):
    """A record that cannot be read."""

    key: bytes
    what: str


async def of_store(universe: Connection) -> AsyncIterator[DamagedRecord]:
    """Those of no universe."""
    for place, values in _IN_STORE.items():
        prefix = space.part(space.Root.STORE) + space.part(place)
        async for each in _faults(universe, prefix, values):
            yield each


async def of_universe(universe: Connection) -> AsyncIterator[DamagedRecord]:
    """Those of a universe, and of no world."""
    for place, values in _IN_UNIVERSE.items():
        async for each in _faults(universe, space.universe(universe.id) + space.part(place), values):
            yield each


async def of_world(universe: Connection, at: ids.Address) -> AsyncIterator[DamagedRecord]:
    for place, values in _IN_WORLD.items():
        async for each in _faults(universe, space.world(at) + space.part(place), values):
            yield each


async def _faults(universe: Connection, prefix: bytes, values: _Values) -> AsyncIterator[DamagedRecord]:
    async for key, raw in listing.items(universe, kv.Range(*tuples.prefix_range(prefix), count_max=PAGE)):
        if key in _COUNTERS:  # it shares a keyspace with records, and has no envelope
            continue
        try:
            keyspace_table.take_apart(key)
            _read(key, raw, values)
        except errors.KeyDestroyed:
            continue  # a person has erased it
        except errors.Corrupt as error:
            row = keyspace_table.of(key)
            assert row is not None
            yield DamagedRecord(key, f"the {row.place.name.lower()} record {key.hex()}: {error}")


def _read(key: bytes, raw: bytes, values: _Values) -> None:
    data = frame.plain(raw)
    row = keyspace_table.of(key)
    if row is not None and row.stamped is keyspace_table.Stamped.IN_VALUE:
        data = data[: -limits.STAMP_BYTES]  # the store has put a stamp behind the value, which is no part of it
    kind = frame.kind_of(data)
    # Of an unknown kind, the first codec says what is wrong, with its own words.
    value = next((each for each in values if each.kind == kind), values[0])
    value.unpack(data)
