"""A record that cannot be read is found by doctor, whichever keyspace it is of that no other check reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

import worldline as wl
from tests.keys.golden_keys import KEYS
from worldline.base import errors, limits
from worldline.client.connection import Connection
from worldline.codec import frame, tuples
from worldline.features.erasure import batches as erasure_batches
from worldline.features.erasure import keyspace as ledger_keys
from worldline.features.erasure import scrub_keyspace
from worldline.features.erasure.records import ErasedKind
from worldline.host.feature_list import FEATURES
from worldline.inspect import doctor, record_check
from worldline.keys import keyspace_table, space
from worldline.keys.keyspace_table import Keyspace
from worldline.model import ids
from worldline.store import kv

app = wl.Program("kept")


@dataclass(frozen=True)
class Noted:
    text: str


@app.reducer
@dataclass
class Notes:
    count: int = 0

    @wl.on
    def noted(self, event: Noted) -> None:
        self.count += 1
        if not event.text:
            raise ValueError("nothing")


def keys_of(row: Keyspace, universe: ids.UniverseId, at: ids.Address) -> bytes:
    """A key of this keyspace, in this universe and of this world."""
    builders: list[Callable[[], bytes]] = [build for name, build, _ in KEYS if not name.endswith("prefix")]
    found = next(
        key for key in (build() for build in builders) if keyspace_table.of(key) is row and key != scrub_keyspace.COUNT
    )
    rest = tuples.pack(keyspace_table.take_apart(found).rest)
    if isinstance(row.place, space.InStore):
        return found
    prefix = space.world(at) if isinstance(row.place, space.InWorld) else space.universe(universe)
    return prefix + space.part(row.place) + rest


async def overwrite(engine: kv.Engine, key: bytes, value: bytes) -> bytes | None:
    before = (await engine.read(kv.Get(key))).value(0)
    batch = kv.Batch()
    batch.absent(key) if before is None else batch.expect(key, before)
    batch.put(key, value)
    [outcome] = await engine.commit(batch)
    assert isinstance(outcome, kv.Ok)
    return before


async def restore(engine: kv.Engine, key: bytes, value: bytes, before: bytes | None) -> None:
    batch = kv.Batch()
    batch.expect(key, value)
    batch.delete(key) if before is None else batch.put(key, before)
    [outcome] = await engine.commit(batch)
    assert isinstance(outcome, kv.Ok)


async def findings(connection: Connection) -> list[doctor.DoctorFinding]:
    return (await doctor.examine(connection, repair=False, store_too=True)).findings


async def test_a_damaged_record_of_every_keyspace_is_found() -> None:
    rows = [each for each in keyspace_table.KEYSPACES if record_check.CHECK in each.checks]
    assert len(rows) > 20
    async with wl.open("memory://", create=True) as universe:
        connection = universe._connection
        engine = connection.store.engine
        world = await universe.create("alice", app)
        at = await world._handle.address()
        assert await findings(connection) == []
        for row in rows:
            key = keys_of(row, connection.id, at)
            damaged = frame.wrap(space.ValueKind.SCHEMA, b"\xff" * limits.STAMP_BYTES * 2)
            before = await overwrite(engine, key, damaged)
            [found, *others] = await findings(connection)
            assert (found.kind, found.repaired) == ("damaged", False)
            assert all("cannot be looked at" in each.what for each in others), "the check goes on"
            assert found.world == ("alice" if isinstance(row.place, space.InWorld) else "")
            assert f"the {row.place.name.lower()} record {key.hex()}" in found.what
            assert "backup" in found.advice
            await restore(engine, key, damaged, before)
        assert await findings(connection) == []


async def test_what_is_of_the_store_is_looked_at_when_that_is_asked_for() -> None:
    async with wl.open("memory://", create=True) as universe:
        connection = universe._connection
        await overwrite(connection.store.engine, ledger_keys.entries()[0] + b"\x15\x01", b"\xff")
        assert (await doctor.examine(connection, repair=False)).findings == []
        [found] = await findings(connection)
        assert "the ledger record" in found.what


async def test_records_that_can_be_read_are_no_finding() -> None:
    """What a store has after a while of all of these: two kinds of values under one ordinal, counters, stamps."""
    async with wl.open("memory://", host=app) as universe:
        connection = universe._connection
        world = await universe.create("alice", app)
        await (await world.send(Noted("one"), id="one")).applied()
        await world.send(Noted(""), id="bad")
        await universe.set_quota(worlds=100, bytes=1 << 40)
        await universe.store_settings({"worker.snapshots_kept": 7})
        await universe.allow("ab" * 16)
        batch = kv.Batch()
        erasure_batches.note(batch, ErasedKind.UNIVERSE, ids.UniverseId(bytes(16)), time_us=1)
        erasure_batches.owe_scrub(batch)
        batch.absent(b"\x01")
        batch.put(b"\x01", b"")
        await connection.store.engine.commit(batch)
        assert await findings(connection) == []


def test_a_record_of_another_kind_is_refused() -> None:
    """The envelope says what it holds: a name in the place of a quota is no quota."""
    key = next(build() for name, build, _ in KEYS if name == "quota_keyspace.quotas_key")
    row = keyspace_table.of(key)
    assert row is not None
    readers = record_check.readers_of(row, FEATURES)
    with pytest.raises(errors.DecodeError):
        record_check._read(row, frame.wrap(space.ValueKind.NAME, b""), readers)


def test_no_keyspace_is_without_a_reader_and_each_is_brought_by_its_owner() -> None:
    named = [(each.owner, repr(each.place)) for each in keyspace_table.KEYSPACES if record_check.CHECK in each.checks]
    owners = [("core", record_check.CORE), *((each.name, each.readers) for each in FEATURES)]
    assert sorted(named) == sorted((owner, repr(each.place)) for owner, brought in owners for each in brought)
