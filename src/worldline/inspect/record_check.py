"""Can every record be read that no other check of `worldline doctor` reads?

Processes leave out a name or a log entry that they cannot read, and many records are read by none until they are asked
for. So nothing else says that one is damaged. The table of keyspaces says which are read here (`records`); what reads
them stands here for the core, and in `feature.py` for each feature (`Feature.readers`).

Counters are not looked at: they have no envelope, and any eight bytes are one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from worldline.base import errors, limits
from worldline.client.connection import Connection
from worldline.codec import frame, tuples
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
from worldline.runtime.feature import Feature
from worldline.runtime.feature_checks import RecordReaders
from worldline.store import kv, paging

PAGE = 1_000
CHECK = "records"  # its name in the table of keyspaces

CORE = (
    RecordReaders(InStore.UNIVERSE_NAME, (universes.NAME,)),
    RecordReaders(InUniverse.META, (universes.META,)),
    RecordReaders(InUniverse.GENERATION, (universes.GENERATION,)),
    RecordReaders(InUniverse.NAME, (worlds.NAME,)),
    RecordReaders(InUniverse.SUBJECT, (personal_subjects.ERASURES,)),
    RecordReaders(InUniverse.AGE, (age.AGE,)),
    RecordReaders(InUniverse.SETTINGS, (universe_settings.SETTINGS,)),
    RecordReaders(InUniverse.GRANTS, (universes.GRANTS,)),
    RecordReaders(InUniverse.GRANT_LOG, (universes.GRANT_CHANGE,)),
    RecordReaders(InWorld.SEEN, (inbox.SEEN,)),
    RecordReaders(InWorld.DEAD, (inbox.DEAD,)),
    RecordReaders(InWorld.TRACE, (traces.KEPT,)),
    RecordReaders(InWorld.BROUGHT, (inbox.BROUGHT,)),
)


class DamagedRecord(msgspec.Struct, frozen=True):
    """A record that cannot be read."""

    key: bytes
    what: str


async def of_store(connection: Connection) -> AsyncIterator[DamagedRecord]:
    """Those of no universe."""
    async for each in _faults(connection, InStore, space.part(space.KeyRoot.STORE)):
        yield each


async def of_universe(connection: Connection) -> AsyncIterator[DamagedRecord]:
    """Those of a universe, and of no world."""
    async for each in _faults(connection, InUniverse, space.universe(connection.id)):
        yield each


async def of_world(connection: Connection, at: ids.Address) -> AsyncIterator[DamagedRecord]:
    async for each in _faults(connection, InWorld, space.world(at)):
        yield each


def readers_of(row: keyspace_table.Keyspace, features: Sequence[Feature]) -> RecordReaders:
    """What reads the records of a keyspace: the core, or the feature that it goes with."""
    every = (CORE, *(feature.readers for feature in features))
    # Ordinals of two parts of the store may be equal numbers, so it must be the very same.
    [readers] = [each for brought in every for each in brought if each.place is row.place]
    return readers


async def _faults(
    connection: Connection, places: type[InStore | InUniverse | InWorld], prefix: bytes
) -> AsyncIterator[DamagedRecord]:
    for row in keyspace_table.KEYSPACES:
        if isinstance(row.place, places) and CHECK in row.checks:
            readers = readers_of(row, connection.store.features)
            async for each in _faults_of(connection, row, prefix + space.part(row.place), readers):
                yield each


async def _faults_of(
    connection: Connection, row: keyspace_table.Keyspace, prefix: bytes, readers: RecordReaders
) -> AsyncIterator[DamagedRecord]:
    async for key, raw in paging.RangeItems(
        connection.store.engine, kv.Range(*tuples.prefix_range(prefix), count_max=PAGE)
    ):
        if key in readers.counters:  # it shares a keyspace with records, and has no envelope
            continue
        try:
            keyspace_table.take_apart(key)
            _read(row, raw, readers)
        except errors.KeyDestroyed:
            continue  # a person has erased it
        except errors.Corrupt as error:
            yield DamagedRecord(key, f"the {row.place.name.lower()} record {key.hex()}: {error}")


def _read(row: keyspace_table.Keyspace, raw: bytes, readers: RecordReaders) -> None:
    data = frame.plain(raw)
    if row.stamped is keyspace_table.Stamped.IN_VALUE:
        data = data[: -limits.STAMP_BYTES]  # the store has put a stamp behind the value, which is no part of it
    kind = frame.kind_of(data)
    # Of an unknown kind, the first codec says what is wrong, with its own words.
    codec = next((each for each in readers.codecs if each.kind == kind), readers.codecs[0])
    codec.unpack(data)
