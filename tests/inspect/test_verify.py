"""Journals with changes in a real store: verified and read without code, and whatever is damaged is named."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

import worldline as wl
from tests.layers import scenario
from tests.layers.histories import History, noise
from worldline.base import errors
from worldline.client.connection import Connection
from worldline.inspect import verify
from worldline.keys import cas as cas_keys
from worldline.layers import cas
from worldline.layers import snapshots as snapshot_layer
from worldline.layers.history import saved_state, step_reader
from worldline.model import change as model
from worldline.model import row_keys
from worldline.model.change import Row
from worldline.model.trie import nodes, paths
from worldline.runtime import world_restore
from worldline.store import kv, transact

app = wl.Program("quiet")
ALICE = row_keys.cell("Orders", "alice")
BOB = row_keys.cell("Orders", "bob")
RUN = row_keys.PROGRESS + row_keys.text("run")
LONG = noise(20_000)


@asynccontextmanager
async def written() -> AsyncIterator[tuple[Connection, History]]:
    """A world that no process runs, with a history of its own: small rows, a large one, deltas of it, many rows in one
    step, and rows that go.
    """
    async with wl.open("memory://", create=True) as universe:
        await universe.create("alice", app)
        connection = universe._connection
        at = await universe.world("alice")._handle.address()
        made = History(at, time_us=connection.store.env.wall_us() + 1)
        many = [
            model.put(RUN + row_keys.OP + row_keys.number(number), Row(noise(900, number))) for number in range(150)
        ]
        for steps in (
            [([b"one"], [model.put(ALICE, Row(b"a" * 50, b"placed"))]), ([b"two"], [])],
            [([b"three", b"four"], [model.put(ALICE, Row(b"b" * 50)), model.put(BOB, Row(LONG))])],
            [([b"five"], [model.put(BOB, Row(LONG + b"more"), base=LONG)])],
            [([b"six"], many)],
            [([b"seven"], [model.drop(RUN), model.gone(ALICE)])],
        ):
            batch = made.commit(*steps)
            for blob in made.blobs.values():
                await connection.blobs.put(blob)
            [outcome] = await transact.commit(connection.store.engine, connection.store.env, batch)
            assert isinstance(outcome, kv.Ok)
        yield connection, made


async def overwrite(connection: Connection, key: bytes, before: bytes, after: bytes | None) -> None:
    [outcome] = await transact.commit(
        connection.store.engine, connection.store.env, scenario.replaced(key, before, after)
    )
    assert isinstance(outcome, kv.Ok)


async def test_changes_are_verified_and_folded() -> None:
    async with written() as (connection, made):
        found = await verify.verify(connection, made.at)
        assert (found.step, found.height, found.entries, found.frames) == (6, 7, 7, 7)
        assert (found.chain, found.state) == (made.head.chain.hex(), made.head.state.hex())
        material = await world_restore.gather(connection.store.engine, connection.blobs, made.at)
        start, rows = world_restore.standing(material.baseline, material.base)
        birth = dict(rows.items())
        assert step_reader.fold(start, material.steps, rows, material.loaded) == made.head == material.head
        assert dict(rows.items()) == birth | {BOB: Row(LONG + b"more")}


async def test_a_state_is_read_at_any_height() -> None:
    async with written() as (connection, made):
        engine, blobs = connection.store.engine, connection.blobs
        for height, step in ((0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (5, 4), (6, 5), (7, 6)):
            material = await world_restore.gather(engine, blobs, made.at, up_to=height)
            assert len(material.steps) == material.head.step == step
            start, rows = world_restore.standing(material.baseline, material.base)
            step_reader.fold(start, material.steps, rows, material.loaded)
            assert (rows.get(ALICE) is not None) is (1 <= height < 7)


def at(text: bytes) -> Callable[[bytes], int]:
    return lambda raw: raw.index(text)


FLIPS: dict[str, tuple[int, Callable[[bytes], int], int, str]] = {
    # Which value, where in it, the height that is reported, and what is said.
    "a meaning": (0, at(b"aaaa"), 1, r"height 2.*changes of step 1, which ends at height 1: .*cell Orders\['alice'\]"),
    "a placement": (0, at(b"placed"), 1, "height 2.*chain of step 1, which ends at height 1"),
    "an entry": (1, at(b"three"), 3, "height 4.*chain of step 3, which ends at height 4"),
    "a key": (1, at(b"alice"), 3, r"height 4.*changes of step 3, which ends at height 4: .*cell Orders\['"),
    "a delta": (2, lambda raw: len(raw) - 4, 5, r"height 5.*changes of step 4, .*: cell Orders\['bob'\]"),
    "a part": (5, lambda raw: 500, 6, "part 2 of the frame .* height 6.*changes of step 5.*operation 1 of run 'run'"),
    "a group": (6, lambda raw: raw.index(b"run"), 7, "height 7.*changes of step 6, .*all operations of run '.un'"),
}


@pytest.mark.parametrize(("index", "place", "height", "why"), FLIPS.values(), ids=FLIPS.keys())
async def test_a_flipped_byte_is_named(index: int, place: Callable[[bytes], int], height: int, why: str) -> None:
    async with written() as (connection, made):
        key, raw = made.items[index]
        await overwrite(connection, key, raw, scenario.flipped(raw, at=place(raw)))
        with pytest.raises(verify.Damaged, match=why) as caught:
            await verify.verify(connection, made.at)
        assert caught.value.height == height
        with pytest.raises(errors.DecodeError, match=why):
            await world_restore.gather(connection.store.engine, connection.blobs, made.at)


async def test_a_blob_of_a_change_that_is_missing_is_named() -> None:
    async with written() as (connection, made):
        key = cas_keys.blob_key(made.at.universe, model.put(BOB, Row(LONG)).digest)
        raw = (await connection.store.engine.read(kv.Get(key))).value(0)
        assert raw is not None
        await overwrite(connection, key, raw, None)
        for look in (
            verify.verify(connection, made.at),
            world_restore.gather(connection.store.engine, connection.blobs, made.at),
        ):
            with pytest.raises(errors.Corrupt, match=r"changes of step 3, which ends at height 4: .*blob"):
                await look


# --- Nodes of snapshots -----------------------------------------------------------------------------------------------

CELLS = [row_keys.cell("orders", f"{number}") for number in range(300)]


@asynccontextmanager
async def saved() -> AsyncIterator[tuple[Connection, History, saved_state.LoadedState]]:
    """A world of many cells, one of them large, with a snapshot at its head."""
    async with wl.open("memory://", create=True) as universe:
        await universe.create("alice", app)
        connection = universe._connection
        at = await universe.world("alice")._handle.address()
        made = History(at, time_us=connection.store.env.wall_us() + 1)
        cells = [model.put(key, Row(noise(60, number))) for number, key in enumerate(CELLS)]
        batch = made.commit(([b"one"], sorted([*cells, model.put(BOB, Row(LONG))], key=lambda each: each.key)))
        for blob in made.blobs.values():
            await connection.blobs.put(blob)
        engine, env = connection.store.engine, connection.store.env
        assert isinstance((await transact.commit(engine, env, batch))[0], kv.Ok)
        material = await world_restore.gather(engine, connection.blobs, at)
        _, rows = world_restore.fold(material)
        state = saved_state.whole(made.head.state, rows.items())
        root = (await saved_state.save(connection.blobs, state)).root
        taken = snapshot_layer.at_head(made.head, root=root, size=state.header.size, program_hash=app.hash)
        batch = kv.Batch()
        record = snapshot_layer.save(batch, at, taken)
        snapshot_layer.promote(batch, at, before_raw=material.baseline_raw, to=record)
        assert isinstance((await transact.commit(engine, env, batch))[0], kv.Ok)
        yield connection, made, await saved_state.load(connection.blobs, root)


async def damage(connection: Connection, made: History, address: bytes, *, at: int | None) -> None:
    key = cas_keys.blob_key(made.at.universe, address)
    raw = (await connection.store.engine.read(kv.Get(key))).value(0)
    assert raw is not None
    await overwrite(connection, key, raw, None if at is None else scenario.flipped(raw, at=at))


async def leaf_with(connection: Connection, loaded: saved_state.LoadedState, key: bytes) -> nodes.Leaf:
    asking = paths.Paths(loaded.header.root.address, [key])
    while wanted := asking.wanted:
        asking.take(await connection.blobs.get_many(wanted))
    leaf = nodes.decode(asking.path(key)[-1])
    assert isinstance(leaf, nodes.Leaf)
    return leaf


async def test_nodes_are_verified() -> None:
    async with saved() as (connection, made, loaded):
        found = await verify.verify(connection, made.at)
        assert found.snapshots == 2
        assert found.blobs > len(CELLS) * 60 // nodes.LEAF_BYTES
        assert len(loaded.rows()) == loaded.header.root.count


@pytest.mark.parametrize("at", [None, 3, 60], ids=["missing", "header", "body"])
async def test_a_damaged_node_is_named_with_the_rows_below_it(at: int | None) -> None:
    async with saved() as (connection, made, loaded):
        leaf = await leaf_with(connection, loaded, CELLS[7])
        address = cas.address(nodes.encode_leaf(leaf.rows))
        await damage(connection, made, address, at=at)
        why = f"step 1: node {address.hex()}, which holds the {len(leaf.rows)} rows on the paths that begin"
        with pytest.raises(verify.Damaged, match=why) as caught:
            await verify.verify(connection, made.at)
        assert caught.value.height == 1
        assert f"now there are below it {row_keys.describe(min(leaf.rows))}" in str(caught.value)
        with pytest.raises(errors.Corrupt, match=f"node {address.hex()}"):
            await world_restore.gather(connection.store.engine, connection.blobs, made.at)


async def test_a_large_row_that_is_missing_is_named_by_its_leaf() -> None:
    async with saved() as (connection, made, _):
        record = model.put(BOB, Row(LONG)).digest
        await damage(connection, made, record, at=None)
        with pytest.raises(
            errors.Corrupt, match=rf"a large row below node .* on the paths that begin with [01]+: .*{record.hex()}"
        ):
            await world_restore.gather(connection.store.engine, connection.blobs, made.at)


async def test_every_flipped_byte_of_a_node_is_found() -> None:
    async with saved() as (connection, made, loaded):
        leaf = await leaf_with(connection, loaded, CELLS[7])
        address = cas.address(nodes.encode_leaf(leaf.rows))
        key = cas_keys.blob_key(made.at.universe, address)
        raw = (await connection.store.engine.read(kv.Get(key))).value(0)
        assert raw is not None
        root = await baseline_root(connection, made)
        for index in range(len(raw)):
            flipped = scenario.flipped(raw, at=index)
            await overwrite(connection, key, raw, flipped)
            with pytest.raises(errors.Corrupt, match=address.hex()):
                await saved_state.load(connection.blobs, root)
            await overwrite(connection, key, flipped, raw)
        await saved_state.load(connection.blobs, root)


async def baseline_root(connection: Connection, made: History) -> bytes:
    read = await connection.store.engine.read(snapshot_layer.get_baseline(made.at))
    return snapshot_layer.decode_baseline(read.value(0)).root
