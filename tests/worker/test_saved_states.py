"""A snapshot writes what has changed since the last one, in every holder, and is the state all the same."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

import worldline as wl
from tests.kits import kit as kits
from tests.kits.crashing import Counting
from tests.kits.kit import Kit
from tests.layers import scenario
from tests.layers.scenario import Store
from worldline.base import errors
from worldline.client.world_handle import Handle
from worldline.features.proofs import calls as proof_calls
from worldline.inspect import verify
from worldline.kernel import state_rows
from worldline.keys import cas as cas_keys
from worldline.layers import blobs as blob_layer
from worldline.layers import snapshots as snapshot_layer
from worldline.layers.history import saved_state
from worldline.model import ids, row_keys
from worldline.model.change import Row
from worldline.model.trie.update import Update
from worldline.store.objects import memory_objects as objects_memory

STATE = bytes(32)
CELLS = 600


@dataclass(frozen=True)
class Put:
    key: str
    text: str = ""


def program() -> wl.Program:
    app = wl.Program("p")

    @app.reducer(key="key")
    @dataclass
    class Cell:
        text: str = ""

        @wl.on
        def put(self, event: Put) -> None:
            self.text = event.text

    @app.effect
    async def echo(text: str) -> str:
        return text

    @app.workflow
    async def talk(count: int) -> int:
        for number in range(count):
            await echo(f"{number}")
        return count

    return app


class Blobs:
    """The blobs that a process writes."""

    def __init__(self) -> None:
        self.engine: Counting | None = None

    def wrap(self, engine: Any) -> Counting:
        self.engine = Counting(engine)
        return self.engine

    def written(self, universe: ids.UniverseId) -> list[bytes]:
        """Since this was last asked."""
        assert self.engine is not None
        begin, end = cas_keys.blobs(universe)
        batches = self.engine.batches[:]
        self.engine.batches.clear()
        return [put.value or b"" for each in batches for key, put in each.puts.items() if begin <= key < end]


# --- In the layers ------------------------------------------------------------------------------------------------


async def test_touching_100_of_200000_cells_writes_in_proportion_to_100() -> None:
    store = Store()
    engine = Counting(store.engine)
    blobs = blob_layer.Blobs(engine, objects_memory.MemoryObjects(store.env), store.env, scenario.UNIVERSE)
    rows = {row_keys.cell("c", f"{number}"): Row(b"%030d" % number) for number in range(200_000)}
    whole = saved_state.whole(STATE, rows.items())
    await saved_state.save(blobs, whole)
    engine.batches.clear()
    touched = {row_keys.cell("c", f"{number}"): Row(b"touched") for number in range(0, 200_000, 2_000)}
    updating = Update(whole.header.root, touched.items())
    changed = await saved_state.save_changed(blobs, updating, at_once, state=STATE, size_before=whole.header.size)
    puts = [put.value or b"" for batch in engine.batches for put in batch.puts.values()]
    assert len(puts) <= 100 * 4
    assert sum(map(len, puts)) <= 100 * 5_000
    assert changed.root == saved_state.whole(STATE, (rows | touched).items()).root


async def at_once(do: Any, *given: Any) -> Any:
    return do(*given)


class Watched(Counting):
    """An engine that notes in which order blobs are read and written, and fails at the commit of a number."""

    def __init__(self, engine: Any, *, fail_at: int | None = None) -> None:
        super().__init__(engine)
        self.calls: list[tuple[str, int]] = []
        self._left = fail_at

    async def read(self, *requests: Any) -> Any:
        self.calls.append(("read", len(requests)))
        return await super().read(*requests)

    async def commit(self, *batches: Any) -> Any:
        self.calls.append(("commit", sum(len(batch.puts) for batch in batches)))
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise errors.StoreUnavailable("it is away")
        return await super().commit(*batches)


def store_of(rows: dict[bytes, Row]) -> tuple[Store, saved_state.StateBlobs]:
    return Store(), saved_state.whole(STATE, rows.items())


def blobs_of(store: Store, engine: Any) -> blob_layer.Blobs:
    return blob_layer.Blobs(engine, objects_memory.MemoryObjects(store.env), store.env, scenario.UNIVERSE)


async def test_a_state_is_changed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done is written before the rest is read, and no call is about many nodes."""
    monkeypatch.setattr(saved_state, "PART_BYTES", 20_000)
    rows = {row_keys.cell("c", f"{number}"): Row(b"%030d" % number) for number in range(6_000)}
    store, whole = store_of(rows)
    await saved_state.save(blobs_of(store, store.engine), whole)
    engine = Watched(store.engine)
    changes = {key: Row(row.meaning + b"!") for key, row in rows.items()}
    updating = Update(whole.header.root, changes.items(), page=10)
    blobs = blobs_of(store, engine)
    saved = await saved_state.save_changed(blobs, updating, at_once, state=STATE, size_before=whole.header.size)
    assert saved.root == saved_state.whole(STATE, changes.items()).root
    writes = [index for index, (name, _) in enumerate(engine.calls) if name == "commit"]
    assert len(writes) > 8
    assert writes[0] < len(engine.calls) / 4
    assert max(count for _, count in engine.calls) <= 20
    assert saved.blobs == sum(count for name, count in engine.calls if name == "commit")


async def test_a_save_that_breaks_off_anywhere_leaves_what_there_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_state, "PART_BYTES", 10_000)
    rows = {row_keys.cell("c", f"{number}"): Row(b"%030d" % number) for number in range(1_500)}
    changes = {key: Row(row.meaning + b"!") for key, row in rows.items()}
    expected = saved_state.whole(STATE, changes.items())
    commits = 0
    while True:
        store, whole = store_of(rows)
        await saved_state.save(blobs_of(store, store.engine), whole)
        blobs = blobs_of(store, Watched(store.engine, fail_at=commits))
        updating = Update(whole.header.root, changes.items(), page=4)
        try:
            await saved_state.save_changed(blobs, updating, at_once, state=STATE, size_before=whole.header.size)
        except errors.StoreUnavailable:
            pass
        else:
            break
        blobs = blobs_of(store, store.engine)
        before = await saved_state.load(blobs, whole.root)
        assert dict(before.rows()) == rows
        assert not await blobs.has(expected.root)
        again = Update(whole.header.root, changes.items())
        done = await saved_state.save_changed(blobs, again, at_once, state=STATE, size_before=whole.header.size)
        assert done.root == expected.root
        await saved_state.check(blobs, done.root, {})
        commits += 1
    assert commits > 3


# --- In a host ------------------------------------------------------------------------------------------------------


async def put(world: wl.World, keys: range, text: str) -> None:
    sent = await asyncio.gather(*(world.send(Put(f"k{number}", text)) for number in keys))
    await asyncio.gather(*(each.applied() for each in sent))


async def test_a_snapshot_writes_what_changed_and_the_next_holder_goes_on(kit: Kit) -> None:
    app, first_blobs, second_blobs = program(), Blobs(), Blobs()
    first = await kit.process(app, wrap=first_blobs.wrap)
    world = await first.universe.ensure("w", app)
    universe = (await world._handle.address()).universe
    await put(world, range(CELLS), "x" * 300)
    await world.snapshot()
    whole = first_blobs.written(universe)
    await put(world, range(3), "touched")
    await kits.run(world, app.workflows["talk"](5), id="r")
    await world.snapshot()
    changed = first_blobs.written(universe)
    assert 0 < sum(map(len, changed)) < sum(map(len, whole)) / 4
    await put(world, range(3, 5), "above the baseline")
    await first.kill()
    await kit.jump(kits.LEASE_TTL_MS / 1000 + 0.1)
    async with kit.hosting(app, wrap=second_blobs.wrap) as client:
        world = client.world("w")
        await put(world, range(5, 7), "by another holder")
        await world.snapshot()
        again = second_blobs.written(universe)
        assert 0 < sum(map(len, again)) < sum(map(len, whole)) / 4
        # Each snapshot is what a replay from the world's birth comes to, byte for byte.
        proof = await proof_calls.prove(Handle(world._universe, "w"), programs=[app])
        assert proof.holds
        assert proof.snapshots == 3
        assert (await verify.verify(world._universe, await world._handle.address())).snapshots == 4


async def test_runs_that_end_leave_the_saved_state(memory_kit: Kit) -> None:
    """Their rows go as groups, of which the journal does not name the rows."""
    app = program()
    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        await put(world, range(CELLS), "x" * 300)
        await world.snapshot()
        for number in range(4):
            await kits.begin(world, app.workflows["talk"](6), id=f"r{number}")
            await world.snapshot()  # with operations of runs that go on
        for number in range(4):
            assert await (await world.attach(f"r{number}")).result(20) == 6
        await world.snapshot()
        machine = await world._handle.machine()
        at = await world._handle.address()
        read = await universe._connection.store.engine.read(snapshot_layer.get_baseline(at))
        root = snapshot_layer.decode_baseline(read.value(0)).root
        assert root == saved_state.whole(machine.state, state_rows.rows_of(machine)).root
