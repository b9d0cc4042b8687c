"""Encrypted stores, from `wl.open(codec=)` down to the bytes: what is hidden, refused, found out and lost for good."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests.features.encryption import encrypted
from tests.features.encryption.encrypted import SECRET, Note, Notes, app, codec, live, opened
from tests.kits import people as people_program
from worldline.base import errors, limits
from worldline.features.deletion import calls as deletion_calls
from worldline.features.encryption import aes_gcm, master_key_keyspace, master_key_rotation
from worldline.features.encryption import batches as data_key_layer
from worldline.features.encryption import keyspace as encryption_keyspace
from worldline.features.encryption.key_ring import KeyRing
from worldline.features.erasure import key_destruction
from worldline.host.feature_list import FEATURES
from worldline.inspect import verify
from worldline.keys import inbox as inbox_keys
from worldline.keys import journal as journal_keys
from worldline.keys import keyspace_table, space
from worldline.keys import personal_records as sealed_keys
from worldline.model import ids
from worldline.runtime import store_opening
from worldline.store import kv


async def test_a_secret_is_found_nowhere(place: str, tmp_path: Path) -> None:
    objects = str(tmp_path / "objects")
    async with opened(place, host=app, objects=objects) as universe:
        await live(universe)
    async with opened(place, objects=objects, programs=app) as universe:
        texts = (await universe.world("w").state(Notes)).texts
        assert [text[: len(SECRET)] for text in texts] == [SECRET, SECRET]
        found = await encrypted.everything(universe._connection.store)
    assert any(key.startswith(universe._connection.id.hex().encode()) for key in found), "nothing was an object"
    assert [key for key, value in found.items() if SECRET.encode() in value] == []
    assert [key for key in found if SECRET.encode() in key] == []
    plain = tmp_path / "plain"
    async with wl.open(str(plain), host=app, objects=str(tmp_path / "bodies")) as universe:
        await live(universe)
        engine, bodies = universe._connection.store.engine, universe._connection.store.objects
        items = (await engine.read(kv.Range(b"\x00", b"\xff", 1_000_000, 1 << 30))).page(0).items
        kinds = sorted({space.ValueKind(value[1]).name for _, value in items if SECRET.encode() in value})
        assert kinds == ["DEAD", "INBOX", "INDEX", "JOURNAL", "TRACE", "WORK", "WORLD_META"], "without a codec"
        assert any([SECRET.encode() in await bodies.get(each.name) for each in await bodies.list("")])


async def test_a_store_is_opened_as_it_was_made(tmp_path: Path) -> None:
    sealed, plain = tmp_path / "sealed", tmp_path / "plain"
    async with opened(sealed, host=app) as universe:
        await universe.ensure("w", app)
    async with wl.open(str(plain), create=True):
        pass
    with pytest.raises(errors.CodecMismatch, match="is encoded with 'aes-gcm'"):
        await store_opening.open_store(str(sealed), features=FEATURES)
    with pytest.raises(errors.CodecMismatch, match="is not encoded"):
        await store_opening.open_store(str(plain), codec=codec(), features=FEATURES)
    with pytest.raises(errors.CodecMismatch, match="'aes-gcm', not with 'other'"):
        await store_opening.open_store(str(sealed), codec=OtherCodec(), features=FEATURES)


async def test_what_cannot_decode_an_encrypted_store_refuses_it(tmp_path: Path) -> None:
    async with opened(tmp_path, host=app) as universe:
        await universe.ensure("w", app)
    without = tuple(each for each in FEATURES if each.wrap_store is None)
    with pytest.raises(errors.CodecMismatch, match="this store is encoded; open it with the codec"):
        await store_opening.open_store(str(tmp_path), features=without)
    with pytest.raises(AssertionError, match="no feature here encodes stores"):
        await store_opening.open_store(str(tmp_path), codec=codec(), features=without)


def test_one_feature_encodes_stores() -> None:
    assert [each.name for each in FEATURES if each.wrap_store is not None] == ["encryption"]


async def test_keys_that_are_missing_or_wrong_are_named_before_anything_is_written(tmp_path: Path) -> None:
    async with opened(tmp_path, host=app) as universe:
        await universe.ensure("w", app)
    async with opened(tmp_path) as universe:
        before = await encrypted.everything(universe._connection.store)
    with pytest.raises(errors.KeyMissing, match="key 'old' is needed") as missing:
        await store_opening.open_store(str(tmp_path), codec=codec("new"), features=FEATURES)
    assert missing.value.key_id == "old"
    with pytest.raises(errors.WrongKey, match="key 'old' is not the one"):
        await store_opening.open_store(
            str(tmp_path), codec=wl.ops.AesGcm(keys={"old": b"x" * 32}, current="old"), features=FEATURES
        )
    async with opened(tmp_path) as universe:
        assert await encrypted.everything(universe._connection.store) == before


BAD_KEYS: list[tuple[Any, Any, str]] = [
    ({"a": b"short"}, "a", "key 'a' must be 32 bytes"),
    ({"a": "x" * 32}, "a", "key 'a' must be 32 bytes"),
    ({"a": b"x" * 32}, "b", "current='b' names none"),
    ({}, "a", "names none of the keys that were given: none"),
    ({"": b"x" * 32}, "", "the id of a key is text"),
    ({"x" * 65: b"x" * 32}, "x" * 65, "the id of a key is text"),
    ({1: b"x" * 32}, 1, "the id of a key is text"),
]


@pytest.mark.parametrize(("keys", "current", "said"), BAD_KEYS)
def test_bad_keys_are_refused(keys: Any, current: Any, said: str) -> None:
    with pytest.raises(errors.BadInput, match=said):
        wl.ops.AesGcm(keys=keys, current=current)


def test_a_codec_shows_no_keys() -> None:
    assert repr(codec("new", "old", "new")) == "AesGcm(keys=['old', 'new'], current='new')"


class OtherCodec:
    name = "other"

    def encode(self, data: bytes, context: wl.ops.CodecContext) -> bytes:
        return data

    def decode(self, data: bytes, context: wl.ops.CodecContext) -> bytes:
        return data


# --- Damage ----------------------------------------------------------------------------------------------------------


async def swap(store: store_opening.Store, first: bytes, second: bytes) -> None:
    engine, _ = encrypted.inner(store)
    read = await engine.read(kv.Get(first), kv.Get(second))
    one, other = read.value(0), read.value(1)
    assert one is not None
    assert other is not None
    batch = kv.Batch()
    batch.expect(first, one)
    batch.put(first, other)
    batch.put(second, one)
    assert isinstance((await engine.commit(batch))[0], kv.Ok)


async def overwrite(store: store_opening.Store, key: bytes, change: Any) -> None:
    engine, _ = encrypted.inner(store)
    value = (await engine.read(kv.Get(key))).value(0)
    assert value is not None
    batch = kv.Batch()
    batch.expect(key, value)
    batch.put(key, change(value))
    assert isinstance((await engine.commit(batch))[0], kv.Ok)


def flipped(at: int) -> Any:
    return lambda value: value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]


DAMAGE: list[tuple[str, Any]] = [
    ("the version", flipped(0)),
    ("the form", flipped(1)),
    ("the nonce", flipped(3)),
    ("the body", flipped(20)),
    ("the tag", lambda value: value[:-1] + bytes([value[-1] ^ 1])),
    ("truncated", lambda value: value[:20]),
    ("all but gone", lambda value: value[:1]),
    ("plain", lambda value: journal_keys.pack_frame([b"entry"])),
]


@pytest.mark.parametrize("change", [change for _, change in DAMAGE], ids=[name for name, _ in DAMAGE])
async def test_a_value_that_was_tampered_with_is_corrupt(tmp_path: Path, change: Any) -> None:
    """Where it is decoded; another value of the same read is not touched by it."""
    async with opened(tmp_path, host=app) as universe:
        for name in ("w", "v"):
            await (await (await universe.ensure(name, app)).send(Note(name))).applied()
    async with opened(tmp_path, programs=app) as universe:
        store = universe._connection.store
        at, other = [await universe.world(name)._handle.address() for name in ("w", "v")]
        await overwrite(store, journal_keys.frame_key(at, 1), change)
        read = await store.engine.read(*(kv.Range(*journal_keys.frames(each)) for each in (at, other)))
        with pytest.raises(errors.Corrupt):
            journal_keys.unpack_frame(read.page(0).items[0][1])
        journal_keys.unpack_frame(read.page(1).items[0][1])


async def test_values_that_were_exchanged_are_corrupt(tmp_path: Path) -> None:
    """In one world, and between two."""
    async with opened(tmp_path, host=app) as universe:
        for name in ("w", "v"):
            world = await universe.ensure(name, app)
            for text in ("1", "2"):
                await (await world.send(Note(text))).applied()
    async with opened(tmp_path, programs=app) as universe:
        store = universe._connection.store
        at, other = [await universe.world(name)._handle.address() for name in ("w", "v")]
        places = [(await store.engine.read(kv.Range(*journal_keys.frames(each)))).page(0).items for each in (at, other)]
        for first, second in ((places[0][0][0], places[0][1][0]), (places[0][0][0], places[1][0][0])):
            await swap(store, first, second)
            for key in (first, second):
                raw = (await store.engine.read(kv.Get(key))).value(0)
                assert raw is not None
                with pytest.raises(errors.DecodeError, match="changed, moved, or sealed with another key"):
                    journal_keys.unpack_frame(raw)
            await swap(store, first, second)
        assert (await universe.world("w").state(Notes)).texts == ["1", "2"]


async def test_an_object_that_was_tampered_with_or_moved_is_corrupt(tmp_path: Path) -> None:
    async with opened(tmp_path / "s", create=True, objects=str(tmp_path / "o")) as universe:
        store = universe._connection.store
        _, inner = encrypted.inner(store)
        names = [f"{universe._connection.id.hex()}/cas/aa/{n}-{n}" for n in range(3)]
        for n, name in enumerate(names):
            await store.objects.put(name, b"body %d" % n * 10)
        body = await inner.get(names[0])
        await inner.delete(names[0])
        await inner.put(names[0], await inner.get(names[1]))
        await inner.delete(names[2])
        await inner.put(names[2], flipped(40)(body))
        for name in (names[0], names[2]):
            with pytest.raises(errors.DecodeError, match="changed, moved"):
                await store.objects.get(name)
        assert await store.objects.get(names[1]) == b"body 1" * 10
        with pytest.raises(errors.BadInput, match="not named for a universe"):
            await store.objects.put("a/b", b"")


async def test_the_record_of_a_data_key_that_was_tampered_with_or_moved_is_corrupt(tmp_path: Path) -> None:
    async with opened(tmp_path, host=app) as universe:
        for name in ("w", "v"):
            await (await (await universe.ensure(name, app)).send(Note(name))).applied()
    async with opened(tmp_path, programs=app) as universe:
        store = universe._connection.store
        at, other = [await universe.world(name)._handle.address() for name in ("w", "v")]
        await swap(store, encryption_keyspace.world_key(at), encryption_keyspace.world_key(other))
        raw = (await store.engine.read(kv.Range(*journal_keys.frames(at)))).page(0).items[0][1]
        with pytest.raises(errors.DecodeError, match=r"the data key .* is damaged"):
            journal_keys.unpack_frame(raw)


# --- Rotation --------------------------------------------------------------------------------------------------------


async def test_keys_are_rotated_while_hosts_run(place: str) -> None:
    """Two of them, one with the old key as its current one: no step is lost, and each reads the other's worlds."""
    async with (
        opened(place, codec("old", "old", "new"), host=app) as first,
        opened(place, codec("new", "old", "new"), host=app) as second,
    ):
        worlds = [await (first, second)[n % 2].ensure(f"w{n}", app) for n in range(6)]
        busy = asyncio.ensure_future(_write(first, second))
        ring = master_key_rotation.ring_of(second._connection.store)
        done = await master_key_rotation.rotate(ring)
        assert done.rewrapped >= 3
        await busy
        for world in worlds:
            texts = (await first.world(world.name).state(Notes)).texts
            assert texts == [str(n) for n in range(20)], world.name
        late = await first.ensure("late", app)  # under the old key, which comes back into use
        await (await late.send(Note("x"))).applied()
        assert "old" in [each.id for each in await master_key_rotation.in_use(ring)]
    async with opened(place, codec("new", "old", "new")) as universe:
        done = await master_key_rotation.rotate(master_key_rotation.ring_of(universe._connection.store))
        assert (done.retired, done.kept) == (["old"], [])
    async with opened(place, codec("new"), programs=app) as universe:
        assert (await universe.world("late").state(Notes)).texts == ["x"]
        assert (await universe.world("w0").state(Notes)).texts == [str(n) for n in range(20)]


async def _write(*universes: wl.Universe) -> None:
    async def one(name: str, universe: wl.Universe) -> None:
        for n in range(20):
            await (await universe.world(name).send(Note(str(n)))).applied()

    await asyncio.gather(*(one(f"w{n}", universes[n % 2]) for n in range(6)))


async def test_a_key_that_wraps_something_new_is_not_retired(tmp_path: Path) -> None:
    """A data key that is made between the look at all of them and the retirement makes the retirement conflict."""
    async with (
        opened(tmp_path, codec("old", "old", "new"), host=app) as first,
        opened(tmp_path, codec("new", "old", "new")) as second,
    ):
        ring = master_key_rotation.ring_of(second._connection.store)
        wrapped_by = master_key_rotation._wrapped_by

        async def and_then(of: Any) -> Any:
            counted = await wrapped_by(of)
            await first.ensure("late", app)
            return counted

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(master_key_rotation, "_wrapped_by", and_then)
            done = await master_key_rotation.rotate(ring)
        assert (done.retired, done.kept) == ([], ["old"])
        [use] = [each for each in await master_key_rotation.in_use(ring) if each.id == "old"]
        assert use.data_keys >= 1


async def test_a_key_that_is_retired_while_it_wraps_something_comes_back_into_use(tmp_path: Path) -> None:
    """The batch that makes a data key expects the master keys in use as it has read them."""
    async with (
        opened(tmp_path, codec("old", "old", "new"), create=True) as first,
        opened(tmp_path, codec("new", "old", "new")) as second,
    ):
        maker, ring = [master_key_rotation.ring_of(each._connection.store) for each in (first, second)]
        maker.engine = between = RotatingFirst(maker.engine, ring)
        await first.ensure("late", app)
        assert between.retired == ["old"]
        assert {each.id: each.data_keys > 0 for each in await master_key_rotation.in_use(ring)}["old"]


class RotatingFirst:
    """An engine before whose first commit the keys are rotated, from beginning to end."""

    def __init__(self, inner: kv.Engine, ring: KeyRing) -> None:
        self._inner = inner
        self._ring = ring
        self.retired: list[str] | None = None
        self.read, self.wait, self.durability, self.close = inner.read, inner.wait, inner.durability, inner.close

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        if self.retired is None:
            self.retired = (await master_key_rotation.rotate(self._ring)).retired
        return await self._inner.commit(*batches)


@pytest.mark.probe("encryption.translated-again")
async def test_a_data_key_that_was_wrapped_anew_is_read_again(tmp_path: Path) -> None:
    async with opened(tmp_path, codec("old", "old", "new"), host=app) as universe:
        world = await universe.ensure("w", app)
        await (await world.send(Note("1"))).applied()
        async with opened(tmp_path, codec("new", "old", "new")) as other:
            await master_key_rotation.rotate(master_key_rotation.ring_of(other._connection.store))
        await (await world.send(Note("2"))).applied()
        assert (await world.state(Notes)).texts == ["1", "2"]


@pytest.mark.probe("encryption.known-full")
async def test_more_worlds_than_keys_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DATA_KEYS_KNOWN_MAX", 2)
    async with opened(tmp_path, host=app) as universe:
        worlds = [await universe.ensure(f"w{n}", app) for n in range(5)]
        for text in ("1", "2"):
            await asyncio.gather(*(world.send(Note(text)) for world in worlds))
        assert [(await world.state(Notes)).texts for world in worlds] == [["1", "2"]] * 5


async def test_a_rotation_that_was_cut_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path, codec("old"), host=app) as universe:
        for n in range(4):
            await universe.ensure(f"w{n}", app)
    rewrap, count = master_key_rotation._rewrap, 0

    async def cut(*arguments: Any) -> bool:
        nonlocal count
        count += 1
        if count == 3:
            raise errors.StoreUnavailable("cut off")
        return await rewrap(*arguments)

    async with opened(tmp_path, codec("new", "old", "new")) as universe:
        ring = master_key_rotation.ring_of(universe._connection.store)
        monkeypatch.setattr(master_key_rotation, "_rewrap", cut)
        with pytest.raises(errors.StoreUnavailable):
            await master_key_rotation.rotate(ring)
        monkeypatch.undo()
        done = await master_key_rotation.rotate(ring)
        assert (done.rewrapped, done.retired) == (3, ["old"])  # of five: four worlds and the universe


async def test_a_process_without_the_new_key_says_so_and_goes_on_with_what_it_can_read(tmp_path: Path) -> None:
    async with (
        opened(tmp_path, codec("old"), host=app) as behind,
        opened(tmp_path, codec("new", "old", "new")) as ahead,
    ):
        old = await behind.ensure("old", app)
        await ahead.ensure("new", app)
        with pytest.raises(errors.KeyMissing, match="'new'"):
            await behind.world("new").send(Note("x"))
        await (await old.send(Note("x"))).applied()
        assert (await old.state(Notes)).texts == ["x"]


# --- Destruction -----------------------------------------------------------------------------------------------------


async def test_destroying_the_key_of_a_world_makes_its_data_unreadable_and_no_other(place: str) -> None:
    async with opened(place, host=app) as universe:
        doomed, spared = await live(universe, "doomed"), await live(universe, "spared")
        link = universe._connection
        at, other = await doomed._handle.address(), await spared._handle.address()
        assert await key_destruction.destroy_key(link, at)
        assert not await key_destruction.destroy_key(link, at), "the second time changes nothing"
        with pytest.raises(errors.Error, match=r"archived|erased"):
            await doomed.send(Note("x"))
        await (await spared.send(Note("y"))).applied()
        assert (await doomed.describe()).labels == {"of": SECRET}
        for which, outcome in ((at, False), (other, True)):
            prefix = space.world(which)
            read = await link.store.engine.read(kv.Range(prefix, prefix + b"\xff", 10_000, 1 << 30))
            assert _readable(which, read.page(0)) is outcome
    async with opened(place, programs=app) as universe:
        assert len((await universe.world("spared").state(Notes)).texts) == 3
        with pytest.raises(errors.KeyDestroyed, match="erased: the key of world"):
            await universe.world("doomed").state(Notes)


async def test_personal_values_go_with_the_key_of_the_last_world_that_has_them(tmp_path: Path) -> None:
    people, _ = people_program.program()
    async with opened(tmp_path, host=people) as universe:
        world = await universe.ensure("w", people)
        await (await world.send(people_program.ada())).applied()
        fork = await world.fork("fork")
        await (await fork.send(people_program.Renamed("ada", "Ada"))).applied()
        await fork.snapshot()
        link, engine = universe._connection, universe._connection.store.engine
        begin, end = sealed_keys.lineages(link.id)
        assert await key_destruction.destroy_key(link, await world._handle.address())
        assert (await fork.state())["Person"]["ada"]["mail"] == people_program.SECRET
        assert await key_destruction.destroy_key(link, await fork._handle.address())
        assert (await engine.read(kv.Range(begin, end))).page(0).items == []


def _readable(at: ids.Address, page: kv.Page) -> bool:
    """Whether everything of a world that is sealed with its own key can be read. All of it can, or nothing."""
    outcomes: list[bool] = []
    for key, value in page.items:
        if encryption_keyspace.sealing(key) == encryption_keyspace.world_key(at):
            outcomes.append(value[:1] == b"\xb1")
            if not outcomes[-1]:
                with pytest.raises(errors.KeyDestroyed):
                    journal_keys.unpack_frame(value)
    assert outcomes
    assert len(set(outcomes)) == 1
    return outcomes[0]


async def test_a_holder_of_an_erased_world_writes_nothing_more_and_its_other_worlds_go_on(tmp_path: Path) -> None:
    async with opened(tmp_path, host=app) as holder, opened(tmp_path) as other:
        doomed, spared = await holder.ensure("doomed", app), await holder.ensure("spared", app)
        await asyncio.gather(doomed.send(Note("1")), spared.send(Note("1")))
        at = await doomed._handle.address()
        ring = master_key_rotation.ring_of(other._connection.store)
        engine, _ = encrypted.inner(other._connection.store)
        batch, key = kv.Batch(), encryption_keyspace.world_key(at)
        raw = (await engine.read(kv.Get(key))).value(0)
        data_key_layer.destroy(batch, key, raw, time_us=1)
        assert isinstance((await ring.engine.commit(batch))[0], kv.Ok)  # without archiving it: the worst that can be
        with pytest.raises(errors.Error):
            await doomed.ask(encrypted.Count(), timeout=5)
        for n in range(5):
            await (await spared.send(Note(str(n)))).applied()
        assert len((await spared.state(Notes)).texts) == 6


async def test_a_world_whose_forks_need_it_is_not_erased(tmp_path: Path) -> None:
    async with opened(tmp_path, host=app) as universe:
        world = await universe.ensure("w", app)
        await (await world.send(Note("1"))).applied()
    async with opened(tmp_path) as universe:
        await universe.world("w").fork("child")
        at = await universe.world("w")._handle.address()
        with pytest.raises(errors.Closed, match="child were forked from it"):
            await key_destruction.destroy_key(universe._connection, at)
        assert (await universe.world("w").describe()).status is wl.Status.ACTIVE, "nothing was changed"


async def test_an_erased_world_and_an_erased_fork_can_be_deleted(tmp_path: Path) -> None:
    async with opened(tmp_path, host=app) as universe:
        await (await (await universe.ensure("w", app)).send(Note("1"))).applied()
    async with opened(tmp_path) as universe:
        link = universe._connection
        await universe.world("w").fork("child")
        parent, child = [await universe.world(name)._handle.address() for name in ("w", "child")]
        assert await key_destruction.destroy_key(link, child)
        assert await key_destruction.destroy_key(link, parent), "the erased fork does not pin it any more"
        for name, at in (("child", child), ("w", parent)):
            assert await deletion_calls.delete(link, at, alias=name, wait=True)
            left = [key for key in await encrypted.everything(link.store) if key.startswith(space.world(at))]
            assert [key[len(space.world(at)) :] for key in left] == [b"\x15\x01", b"\x15\x02"], "tombstone and epoch"


async def test_deleting_a_world_destroys_its_key_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path, host=app) as universe:
        world = await live(universe, "doomed")
        at = await world._handle.address()
        engine, _ = encrypted.inner(universe._connection.store)
        counted = kv.Batch()
        counted.add(encryption_keyspace.seals_key(encryption_keyspace.world_key(at)), 1)  # as one value of many does
        counted.absent(b"\x01")
        counted.put(b"\x01", b"")
        await engine.commit(counted)
        assert await deletion_calls.delete(universe._connection, at, alias="doomed")
        record = data_key_layer.decode((await engine.read(data_key_layer.get(at))).value(0))
        assert record is not None
        assert not record.wrapped
        await deletion_calls.delete(universe._connection, at, wait=True)
        found = await encrypted.everything(universe._connection.store)
        assert [key for key in found if key.startswith(space.world(at) + b"\x15\x06")] == []
        told = [keyspace_table.of(key) for key in found if bytes(at.world) in key]
        assert {each.metric for each in told if each is not None} == {"world_meta", "epoch", "world_key"}


async def test_a_plain_store_has_no_keys_to_destroy(tmp_path: Path) -> None:
    async with wl.open(str(tmp_path), host=app) as universe:
        world = await universe.ensure("w", app)
        with pytest.raises(errors.CodecMismatch, match="has no keys of its own"):
            await key_destruction.destroy_key(universe._connection, await world._handle.address())


# --- Around it -------------------------------------------------------------------------------------------------------


async def test_verify_and_doctor_look_through_it(tmp_path: Path) -> None:
    async with opened(tmp_path, host=app) as universe:
        await live(universe)
    async with opened(tmp_path, programs=app) as universe:
        checked = await verify.verify(universe._connection, await universe.world("w")._handle.address())
        assert checked is not None


@pytest.fixture
def no_cryptography(monkeypatch: pytest.MonkeyPatch) -> None:
    aes_gcm.load.cache_clear()
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)


async def test_without_the_extra_it_says_what_to_install(tmp_path: Path, no_cryptography: None) -> None:
    with pytest.raises(errors.BadUrl, match=r"worldline\[encryption\]"):
        await store_opening.open_store(str(tmp_path), codec=codec(), features=FEATURES)


async def test_a_process_without_a_codec_has_the_engine_itself(tmp_path: Path) -> None:
    async with wl.open(str(tmp_path), create=True) as universe:
        assert type(universe._connection.store.engine).__name__ == "LmdbEngine"
        assert (await universe._connection.store.engine.read(kv.Get(master_key_keyspace.KEY))).value(0) is None


async def test_an_inbox_item_that_was_expected_is_the_one_that_was_read(tmp_path: Path) -> None:
    """Appended values and values with a stamp are sealed in forms of their own."""
    async with opened(tmp_path, host=app) as universe:
        world = await universe.ensure("w", app)
        await (await world.send(Note("x"), id="note")).applied()
        at, engine = await world._handle.address(), universe._connection.store.engine
        key = inbox_keys.seen_key(at, "note")
        raw = (await engine.read(kv.Get(key))).value(0)
        assert raw is not None
        for expected in (raw, bytes(raw)):
            batch = kv.Batch()
            batch.expect(key, expected)
            batch.put(key, expected + b"1")
            batch2 = kv.Batch()
            batch2.expect(key, expected + b"1")
            batch2.put(key, expected)
            assert [type(each) for each in await engine.commit(batch, batch2)] == [kv.Ok, kv.Ok]
