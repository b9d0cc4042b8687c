"""Data keys that are changed while worlds run: what older ones have sealed is sealed anew, and none is worn out."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import worldline as wl
from tests import aio
from tests.features.encryption.encrypted import NEW, OLD, SECRET, Count, Note, Notes, app, live, opened
from worldline.base import errors, limits
from worldline.features.encryption import data_key_rotation, envelope, master_key_rotation
from worldline.features.encryption import keyspace as encryption_keyspace
from worldline.features.encryption.cipher_interface import KnownCipher
from worldline.features.encryption.key_ring import KeyRing
from worldline.features.encryption.keyspace import DataKey
from worldline.features.encryption.sealed_engine import SealedEngine
from worldline.features.erasure import key_destruction
from worldline.store import kv


def ring_of(universe: wl.Universe) -> KeyRing:
    return master_key_rotation.ring_of(universe._connection.store)


async def records(ring: KeyRing) -> dict[bytes, DataKey]:
    return {key: encryption_keyspace.VALUE.unpack(raw) async for key, raw in master_key_rotation.all_keys(ring)}


async def everything(engine: kv.Engine) -> dict[bytes, bytes]:
    return dict((await engine.read(kv.Range(b"\x00", b"\xff", 1_000_000, 1 << 30))).page(0).items)


async def sealed_by(ring: KeyRing, known: dict[bytes, KnownCipher]) -> list[bytes]:
    """The keys of values that these data keys open."""
    found = []
    for key, stored in (await everything(ring.engine)).items():
        scope = encryption_keyspace.sealing(key)
        if scope in known and stored[:1] == b"\xe1":
            _, place, sealed, _ = envelope.take_apart(key, stored)
            try:
                known[scope].cipher.open(place, sealed)
            except errors.DecodeError:
                continue
            found.append(key)
    return found


async def test_all_values_are_sealed_anew_while_the_world_runs(place: str, tmp_path: Path) -> None:
    async with opened(place, host=app, objects=str(tmp_path / "objects")) as universe:
        await live(universe)
        ring = ring_of(universe)
        before = {
            scope: ring.known(scope, encryption_keyspace.VALUE.pack(each))
            for scope, each in (await records(ring)).items()
        }
        assert len(await sealed_by(ring, before)) > 20
        world = universe.world("w")
        texts = (await world.state(Notes)).texts

        async def talk() -> int:
            for number in range(30):
                await (await world.send(Note(f"meanwhile {number}"))).applied()
            return number + 1

        talking = asyncio.ensure_future(talk())
        done = await data_key_rotation.rotate(ring)
        assert await talking == 30
        assert done.keys == len(before)
        assert done.values > 20
        assert await sealed_by(ring, before) == [], "nothing is under an older key"
        for scope, record in (await records(ring)).items():
            assert not record.rewriting
            assert len(record.older) == (0 if encryption_keyspace.is_world(scope) else 1), (
                "objects are under the older one"
            )
        assert (await world.state(Notes)).texts == [*texts, *(f"meanwhile {number}" for number in range(30))]
        assert (await data_key_rotation.rotate(ring)).keys == len(before), "and again"
        await world.ask(Count())
    async with opened(place, programs=app, objects=str(tmp_path / "objects")) as universe:
        assert (await universe.world("w").state(Notes)).texts[:2] == texts[:2]


async def is_rewriting(ring: KeyRing) -> bool:
    return any(each.rewriting for each in (await records(ring)).values())


async def test_it_may_be_cut_off_anywhere_and_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_key_rotation, "PAGE", 3)
    async with opened(tmp_path, host=app) as universe:
        await live(universe)
        ring = ring_of(universe)
        before = {
            scope: ring.known(scope, encryption_keyspace.VALUE.pack(each))
            for scope, each in (await records(ring)).items()
        }
        rotating = asyncio.ensure_future(data_key_rotation.rotate(ring))
        await aio.until(lambda: is_rewriting(ring))
        rotating.cancel()
        await asyncio.gather(rotating, return_exceptions=True)
        assert await is_rewriting(ring)
        texts = (await universe.world("w").state(Notes)).texts
        assert SECRET in texts[0]
        done = await data_key_rotation.rotate(ring)
        assert done.resumed >= 1
        assert await sealed_by(ring, before) == []


async def test_master_keys_change_under_older_data_keys(tmp_path: Path) -> None:
    async with opened(tmp_path, host=app) as universe:
        await live(universe)
        ring = ring_of(universe)
        await data_key_rotation.rotate(ring)
    both = wl.ops.AesGcm(keys={"old": OLD, "new": NEW}, current="new")
    async with opened(tmp_path, both, host=app) as universe:
        await master_key_rotation.rotate(ring_of(universe))
        assert {each.master for each in (await records(ring_of(universe))).values()} == {"new"}
    only = wl.ops.AesGcm(keys={"new": NEW}, current="new")
    async with opened(tmp_path, only, programs=app) as universe:
        assert (await universe.world("w").state(Notes)).texts


async def test_a_destroyed_key_stays_destroyed(tmp_path: Path) -> None:
    async with opened(tmp_path, host=app) as universe:
        await live(universe)
        at = await universe.world("w")._handle.address()
        await key_destruction.destroy_key(universe._connection, at)
        await data_key_rotation.rotate(ring_of(universe))
        record = (await records(ring_of(universe)))[encryption_keyspace.world_key(at)]
        assert (record.wrapped, record.older) == (b"", [])


async def test_a_writer_with_the_older_key_seals_anew(tmp_path: Path) -> None:
    """A process that has not read since then: its batches conflict with the record, and are sealed with the new key."""
    async with opened(tmp_path, host=app) as universe, opened(tmp_path) as other:
        await live(universe)
        slow = other._connection.store.engine
        assert isinstance(slow, SealedEngine)
        await other.world("w").head()
        before = dict(slow._known)
        await data_key_rotation.rotate(ring_of(universe))
        slow._known.update(before)
        await other.world("w").send(Note("late"))
        assert await sealed_by(ring_of(universe), before) == []


async def until_worn(world: wl.World) -> int:
    for sent in range(10_000):
        try:
            await world.send(Note("again"))
        except errors.KeyWorn:
            return sent
    raise AssertionError


@pytest.mark.probe("encryption.value-counted")
async def test_a_key_that_is_worn_seals_nothing_more_until_another_follows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(KeyRing, "counted", bytes(1))  # one of 256
    monkeypatch.setattr(limits, "SEALS_LOW", 1)
    monkeypatch.setattr(limits, "SEALS_MAX", 3)
    async with opened("memory://", create=True) as universe:
        await universe.create("w", app)
        world = universe.world("w")
        # By chance: of the values of so few inputs, three are counted less than once in 50,000 runs of this test.
        assert 5 < await until_worn(world) < 5_000
        assert "has sealed half of the values that it may" in caplog.text
        with pytest.raises(wl.errors.KeyWorn, match="type `worldline rotate-keys --data`"):
            await world.send(Note("again"))
        assert (await world.head()).step == 0, "reading goes on"
        await data_key_rotation.rotate(ring_of(universe))
        await world.send(Note("another"))
        record = (await records(ring_of(universe)))[encryption_keyspace.world_key(await world._handle.address())]
        assert record.older == []
