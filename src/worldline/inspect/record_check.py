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
from worldline.keys import inbox, space, table, traces, universes, worlds
from worldline.keys.space import InStore, InUniverse, InWorld
from worldline.keys.upkeep import (
    age,
    collection,
    copying,
    data_keys,
    encryption,
    held,
    ledger,
    quotas,
    scrubs,
    subjects,
    universe_deletions,
    universe_settings,
)
from worldline.model import ids
from worldline.store import kv

PAGE = 1_000
CHECK = "records"  # its name in the table of keyspaces

_Values = tuple[space.ValueCodec[Any], ...]

_IN_STORE: dict[InStore, _Values] = {
    InStore.UNIVERSE_NAME: (universes.NAME,),
    InStore.UNIVERSE_DELETION: (universe_deletions.DELETION,),
    InStore.ENCRYPTION: (encryption.VALUE,),
    InStore.RESTORING: (copying.COPYING,),
    InStore.BACKUP: (copying.COPYING,),
    InStore.SCRUBS: (scrubs.RECORD,),
    InStore.LEDGER: (ledger.ENTRY,),
}
_IN_UNIVERSE: dict[InUniverse, _Values] = {
    InUniverse.META: (universes.META,),
    InUniverse.GENERATION: (universes.GENERATION,),
    InUniverse.NAME: (worlds.NAME,),
    InUniverse.COLLECTION: (collection.COLLECTION,),
    InUniverse.HOLDS: (collection.HOLDS,),
    InUniverse.CONDEMNED: (collection.CONDEMNED,),
    InUniverse.SUBJECT: (subjects.ERASURES,),
    InUniverse.DATA_KEY: (data_keys.VALUE,),
    InUniverse.WORLD_KEY: (data_keys.VALUE,),
    InUniverse.IMPORT: (copying.COPYING,),
    InUniverse.QUOTAS: (quotas.QUOTAS, quotas.USAGE),
    InUniverse.QUOTA_LOG: (quotas.QUOTA_CHANGE,),
    InUniverse.AGE: (age.AGE,),
    InUniverse.SETTINGS: (universe_settings.SETTINGS,),
    InUniverse.GRANTS: (universes.GRANTS,),
    InUniverse.GRANT_LOG: (universes.GRANT_CHANGE,),
}
_IN_WORLD: dict[InWorld, _Values] = {
    InWorld.SEEN: (inbox.SEEN,),
    InWorld.DEAD: (inbox.DEAD,),
    InWorld.TRACE: (traces.KEPT,),
    InWorld.HELD: (held.HELD,),
    InWorld.BROUGHT: (inbox.BROUGHT,),
}
_ALL = (*_IN_STORE, *_IN_UNIVERSE, *_IN_WORLD)
assert [each.place for each in table.KEYSPACES if CHECK in each.checks] == [*_ALL], "a record is read by none"

_COUNTERS = (scrubs.COUNT,)


class Fault(msgspec.Struct, frozen=True):
    """A record that cannot be read."""

    key: bytes
    what: str


async def of_store(universe: Connection) -> AsyncIterator[Fault]:
    """Those of no universe."""
    for place, values in _IN_STORE.items():
        prefix = space.part(space.Root.STORE) + space.part(place)
        async for each in _faults(universe, prefix, values):
            yield each


async def of_universe(universe: Connection) -> AsyncIterator[Fault]:
    """Those of a universe, and of no world."""
    for place, values in _IN_UNIVERSE.items():
        async for each in _faults(universe, space.universe(universe.id) + space.part(place), values):
            yield each


async def of_world(universe: Connection, at: ids.Address) -> AsyncIterator[Fault]:
    for place, values in _IN_WORLD.items():
        async for each in _faults(universe, space.world(at) + space.part(place), values):
            yield each


async def _faults(universe: Connection, prefix: bytes, values: _Values) -> AsyncIterator[Fault]:
    async for key, raw in listing.items(universe, kv.Range(*tuples.prefix_range(prefix), count_max=PAGE)):
        if key in _COUNTERS:
            continue
        try:
            table.take_apart(key)
            _read(key, raw, values)
        except errors.KeyDestroyed:
            continue  # a person has erased it
        except errors.Corrupt as error:
            row = table.of(key)
            assert row is not None
            yield Fault(key, f"the {row.place.name.lower()} record {key.hex()}: {error}")


def _read(key: bytes, raw: bytes, values: _Values) -> None:
    data = frame.plain(raw)
    row = table.of(key)
    if row is not None and row.stamped is table.Stamped.IN_VALUE:
        data = data[: -limits.STAMP_BYTES]
    kind = frame.kind_of(data)
    value = next((each for each in values if each.kind == kind), values[0])
    value.unpack(data)
