"""Worlds with more cells than stay in memory: the others are read when they are needed; nothing else is different."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit
from tests.layers import scenario
from tests.layers.scenario import Store
from worldline.base import errors
from worldline.client.world_handle import Handle
from worldline.codec import digest, structs
from worldline.features.proofs import calls as proof_calls
from worldline.features.proofs import row_proof
from worldline.kernel import state_witness, user_values
from worldline.keys import cas as cas_keys
from worldline.layers import blobs as blob_layer
from worldline.layers.history import saved_state
from worldline.model import change as model
from worldline.model import inbox, payload, row_keys
from worldline.model.change import Row
from worldline.model.journal import Kind
from worldline.model.trie.unsaved import Unsaved
from worldline.model.trie.update import root_of
from worldline.observe import measures, sinks
from worldline.runtime import cold_cells, facts, world_restore
from worldline.runtime.cold_cells import ColdCells
from worldline.store.objects import memory_objects as objects_memory
from worldline.worker.held_world import HeldWorld

MEMORY = 60_000  # bytes, about a hundred cells
CELLS = 300
SMALL = {"cells_memory_max": MEMORY}


@dataclass(frozen=True)
class Put:
    key: str
    text: str = ""


@dataclass(frozen=True)
class Move(wl.Request[int]):
    key: str
    to: str


def program() -> wl.Program:
    app = wl.Program("p")

    @app.reducer(key="key")
    @dataclass
    class Cell:
        texts: list[str] = field(default_factory=list)

        @wl.on
        def put(self, event: Put) -> None:
            self.texts.append(event.text)

        @wl.on
        def move(self, event: Move) -> int:
            known = len(wl.state(Cell, event.to).texts)  # a cell that the input does not name
            wl.emit(Put(event.to, f"from {event.key}"))
            return known

    return app


class Twin:
    """What every cell should hold."""

    def __init__(self) -> None:
        self.cells: dict[str, list[str]] = {}

    def put(self, key: str, text: str) -> None:
        self.cells.setdefault(key, []).append(text)


async def put(world: wl.World, twin: Twin, key: str, text: str) -> None:
    await (await world.send(Put(key, text))).applied()
    twin.put(key, text)


async def live(world: wl.World, twin: Twin, draw: Random, count: int) -> None:
    for number in range(count):
        key, to = f"k{draw.randrange(CELLS)}", f"k{draw.randrange(CELLS)}"
        if number % 5:
            text = "long " * 1_500 if number % 7 == 0 else f"{number}"
            await put(world, twin, key, text)
        else:
            twin.cells.setdefault(key, [])
            assert await world.ask(Move(key, to), timeout=20) == len(twin.cells.get(to, []))
            twin.put(to, f"from {key}")


async def fill(world: wl.World, twin: Twin) -> None:
    sent = await asyncio.gather(*(world.send(Put(f"k{number}", "first")) for number in range(CELLS)))
    await asyncio.gather(*(each.applied() for each in sent))
    for number in range(CELLS):
        twin.put(f"k{number}", "first")


async def held_of(process: Any, world: wl.World) -> HeldWorld:
    held: HeldWorld | None = process.host.worlds.peek(await world._handle.address())
    assert held is not None
    return held


async def check(world: wl.World, app: wl.Program, twin: Twin) -> None:
    cls = app.reducers["Cell"].cls
    for number in range(0, CELLS, 17):
        assert (await world.state(cls, f"k{number}")).texts == twin.cells[f"k{number}"]
    assert (await world.state(cls, "never")).texts == []
    assert await world.state() == {"Cell": {key: {"texts": texts} for key, texts in twin.cells.items()}}


@pytest.mark.probe("cells.cold-miss")
async def test_a_large_world_keeps_few_cells_in_memory(kit: Kit) -> None:
    app, twin, draw = program(), Twin(), Random(1)
    first = await kit.process(app, settings=kits.settings(worker=SMALL))
    world = await first.universe.ensure("w", app)
    await fill(world, twin)
    held = await held_of(first, world)
    assert held.machine.cells.are_all
    await world.snapshot()
    assert isinstance(held.machine.cells.fetch, ColdCells)  # it is known to be large now
    await live(world, twin, draw, 40)
    assert len(held.machine.cells) < CELLS / 2
    await check(world, app, twin)
    reader = world._universe.reader(await world._handle.address(), "p")
    assert reader._rows is None, "all cells were read, and are not kept"
    await put(world, twin, "k1", "long " * 1_500)
    await world.snapshot()
    await put(world, twin, "k1", "above the baseline, as a delta of a cell that a restore leaves out")
    await live(world, twin, draw, 20)
    at, connection = await world._handle.address(), world._universe
    material = await world_restore.gather(connection.store.engine, connection.blobs, at, cells_max=MEMORY)
    assert material.base.cold
    assert material.bases
    await first.kill()
    await kit.jump(kits.LEASE_TTL_MS / 1000 + 0.1)
    second = await kit.process(app, settings=kits.settings(worker=SMALL))
    world = second.universe.world("w")
    await live(world, twin, draw, 20)
    held = await held_of(second, world)
    assert held.cold is not None
    assert held.cold.misses > 0
    assert len(held.machine.cells) < CELLS / 2
    await check(world, app, twin)
    await world.snapshot()
    proof = await proof_calls.prove(Handle(world._universe, "w"), programs=[app])
    assert proof.holds
    assert proof.snapshots == 3
    await second.close()


async def test_digests_are_those_of_a_world_with_all_its_cells_in_memory(memory_kit: Kit) -> None:
    app = program()
    states = []
    for name, settings in (("cold", SMALL), ("warm", {})):
        async with memory_kit.hosting(app, settings=kits.settings(worker=settings)) as universe:
            world, twin, draw = await universe.ensure(name, app), Twin(), Random(2)
            await fill(world, twin)
            await world.snapshot()
            await live(world, twin, draw, 40)
            states.append((await world.head()).state)
    assert states[0] == states[1]


async def test_misses_and_cells_in_memory_are_measured(memory_kit: Kit) -> None:
    app, twin, meter = program(), Twin(), measures.Meter()
    observed = sinks.Observed(facts.Telling([("meter", meter.tell)]))
    process = await memory_kit.process(app, settings=kits.settings(worker=SMALL), observed=observed)
    world = await process.universe.ensure("w", app)
    await fill(world, twin)
    assert process.host.levels()["worldline_cells_in_memory"] == CELLS
    await world.snapshot()
    assert meter.value("worldline_cold_misses_total") == 0
    await live(world, twin, Random(4), 30)
    held = await held_of(process, world)
    assert process.host.levels()["worldline_cells_in_memory"] == len(held.machine.cells) < CELLS / 2
    assert held.cold is not None
    assert meter.value("worldline_cold_misses_total") == held.cold.misses > 0
    await process.close()


async def test_a_large_world_goes_back(memory_kit: Kit) -> None:
    """Cells that differ are not in memory: they are changed, and those that there were none of go."""
    app, twin, draw = program(), Twin(), Random(3)
    async with memory_kit.hosting(app, settings=kits.settings(worker=SMALL)) as universe:
        world = await universe.ensure("w", app)
        await fill(world, twin)
        await world.snapshot()
        height, then = (await world.head()).height, copy.deepcopy(twin)
        await live(world, twin, draw, 30)
        for number in range(5):
            await put(world, twin, f"new {number}", "not there then")
        await world.snapshot()
        await fill(world, twin)  # so that hardly any cell of those before is in memory
        await live(world, twin, draw, 20)
        await world.revert(height)
        await check(world, app, then)
        assert universe._connection.host is not None
        held = universe._connection.host.worlds.peek(await world._handle.address())
        assert held is not None
        assert not held.machine.cells.are_all
        await live(world, then, draw, 20)
        await world.snapshot()
        await check(world, app, then)
        assert (await proof_calls.prove(Handle(world._universe, "w"), programs=[app])).holds


async def test_a_large_world_says_the_root_of_all_its_rows(kit: Kit) -> None:
    """Whatever is in memory: behind a snapshot, behind changes since, and restored by another process."""
    app, twin, draw = program(), Twin(), Random(4)
    settings = kits.settings(worker=SMALL)
    first = await kit.process(app, settings=settings)
    world = await first.universe.ensure("w", app)
    await fill(world, twin)
    await world.snapshot()

    async def check_root() -> None:
        said = await row_proof.witness_now(world._handle)
        rows, _ = await world._handle.rows_at(said.height)
        assert said.root == root_of(rows.items())

    await check_root()
    await live(world, twin, draw, 30)
    await check_root()
    both = await asyncio.gather(world.send(Put("k3", "in one cycle")), row_proof.witness_now(world._handle))
    rows, _ = await world._handle.rows_at(both[1].height)
    assert both[1].root == root_of(rows.items())
    held = await held_of(first, world)
    assert held.cold is not None
    assert len(held.machine.cells) < CELLS
    await first.close()
    second = await kit.process(app, settings=settings)
    world = second.universe.world("w")
    twin.put("k3", "in one cycle")
    await check_root()
    await live(world, twin, draw, 20)
    await check_root()
    held = await held_of(second, world)
    assert held.cold is not None
    assert (await proof_calls.prove(Handle(world._universe, "w"), programs=[app])).holds
    await second.close()


async def test_a_small_world_goes_cold_and_is_saved_as_it_is(memory_kit: Kit) -> None:
    """Rows that the snapshot before had, and that are gone when the next is taken, are not in it. The simulator has
    found that they were.
    """
    app, twin = program(), Twin()

    @app.workflow
    async def two_puts() -> str:
        await wl.wait(Put)
        await wl.wait(Put)
        return "done"

    async with memory_kit.hosting(app, settings=kits.settings(worker={"cells_memory_max": 20_000})) as universe:
        world = await universe.ensure("w", app)
        run = await world.start(two_puts())
        await put(world, twin, "k1", "long " * 5_000)
        await world.snapshot()
        await put(world, twin, "k1", "second")
        assert await run.result(timeout=20) == "done"
        assert universe._connection.host is not None
        held = universe._connection.host.worlds.peek(await world._handle.address())
        assert held is not None
        assert held.cold is not None
        await world.snapshot()
        assert (await proof_calls.prove(Handle(world._universe, "w"), programs=[app])).holds


async def test_cells_that_go_by_what_their_keys_begin_with_are_not_saved(memory_kit: Kit) -> None:
    """No step does that, and a history may still say so: in a cold world the cells that go are found."""
    app, twin = program(), Twin()
    process = await memory_kit.process(app, settings=kits.settings(worker=SMALL))
    world = await process.universe.ensure("w", app)
    await fill(world, twin)
    await world.snapshot()
    await put(world, twin, "k1", "changed")
    held = await held_of(process, world)
    assert held.cold is not None
    some = row_keys.cell("Cell", "k29")[:-2]  # k10 to k99
    held.unsaved.take([model.drop(some)])
    assert held.cold(row_keys.cell("Cell", "k42")) is None
    await world.snapshot()
    saved = await saved_state.load(held.blobs, held.baseline.root)
    keys = [key for key, _ in saved.rows() if key.startswith(row_keys.CELL)]
    assert keys
    assert sorted(keys) == sorted(
        key for number in range(CELLS) if not (key := row_keys.cell("Cell", f"k{number}")).startswith(some)
    )
    await process.kill()


async def test_a_large_world_is_saved_before_its_changes_fill_the_memory(memory_kit: Kit) -> None:
    app, twin = program(), Twin()
    rarely = {"snapshot_entries": 1_000_000, "snapshot_ms": 1_000_000, "snapshot_idle_ms": 1_000_000}
    process = await memory_kit.process(app, settings=kits.settings(worker=SMALL | rarely))
    world = await process.universe.ensure("w", app)
    await fill(world, twin)
    await world.snapshot()
    held = await held_of(process, world)
    before = held.baseline.height

    async def saved() -> bool:
        return held.baseline.height > before

    for number in range(12):
        assert held.baseline.height == before or held.unsaved.bytes < 100_000
        await put(world, twin, f"k{number}", "long " * 1_500)
    await aio.until(saved)
    await check(world, app, twin)
    await process.close()


async def test_a_world_whose_values_are_large_for_their_bytes_is_a_large_one(memory_kit: Kit) -> None:
    """By its bytes it is none: short texts take ten times theirs."""
    app, memory = program(), 40_000
    process = await memory_kit.process(app, settings=kits.settings(worker={"cells_memory_max": memory}))
    world = await process.universe.ensure("w", app)
    held: list[HeldWorld] = []
    for count in (50, 1_000):
        sent = await asyncio.gather(*(world.send(Put(f"k{number % 10}", f"{number}")) for number in range(count)))
        await sent[-1].applied(20)
        await world.snapshot()
        held.append(await held_of(process, world))
        assert not saved_state.is_large(held[0].unsaved.header, memory)
        assert (held[0].cold is not None) == (count == 1_000)
    await process.close()


async def test_a_small_world_that_grows_fast_is_saved_before_it_fills_the_memory(memory_kit: Kit) -> None:
    app, twin = program(), Twin()
    rarely = {"snapshot_entries": 1_000_000, "snapshot_ms": 1_000_000, "snapshot_idle_ms": 1_000_000}
    settings = kits.settings(worker={"cells_memory_max": 400_000} | rarely)
    process = await memory_kit.process(app, settings=settings)
    world = await process.universe.ensure("w", app)
    for number in range(10):
        await put(world, twin, f"k{number}", "long " * 1_000)
    held = await held_of(process, world)
    assert held.baseline.height == 0
    for number in range(20):
        await put(world, twin, f"k{number}", "long " * 1_000)

    async def saved() -> bool:
        return held.baseline.height > 0

    await aio.until(saved)
    await process.close()


async def test_a_world_with_all_its_cells_in_memory_says_its_root_by_what_has_changed(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A root made of all rows would take as long as the world is large."""
    app, twin, draw = program(), Twin(), Random(6)
    process = await memory_kit.process(app)
    world = await process.universe.ensure("w", app)
    await fill(world, twin)
    await put(world, twin, "k299", "long " * 20_000)
    await world.snapshot()
    height = (await world.head()).height
    held = await held_of(process, world)
    assert held.machine.cells.are_all
    assert held.unsaved.tracked
    engine = world._universe.store.engine
    made: list[object] = []

    def of_all_rows(rows: Any) -> bytes:
        made.append(rows)
        return root_of(rows)

    monkeypatch.setattr(state_witness, "root_of", of_all_rows)

    async def check_root(*also: Any) -> None:
        asked = world._handle.command(state_witness.WITNESS, state_witness.WitnessCommand())
        *_, (_, height) = await asyncio.gather(*also, asked)
        at = await world._handle.address()
        [said] = [
            structs.decode(state_witness.WitnessedRoot, entry.payload)
            for entry in await world_restore.read_entries(
                engine, world._universe.blobs, at, above=height - 2, up_to=height
            )
            if entry.kind is Kind.WITNESSED
        ]
        rows, _ = await world._handle.rows_at(height - 2)
        assert said.root == root_of(rows.items())

    await check_root()
    await live(world, twin, draw, 20)
    await check_root()
    for number in range(5):  # in one cycle with steps that are not durable yet
        await check_root(*(world.send(Put(f"k{each}", f"{number}")) for each in range(0, 40, 7)))
    await check_root(world.revert(height))
    await check_root(world.send(Put("new", "behind it")))
    assert not made
    assert (await proof_calls.prove(Handle(world._universe, "w"), programs=[app])).holds
    await process.close()


@pytest.mark.probe("cells.root-of-all-rows")
async def test_a_damaged_trie_keeps_no_world_from_saying_its_root(memory_kit: Kit) -> None:
    """All of its rows are in memory."""
    app, twin = program(), Twin()
    process = await memory_kit.process(app)
    world = await process.universe.ensure("w", app)
    await fill(world, twin)
    await put(world, twin, "k299", "long " * 20_000)
    await world.snapshot()
    await put(world, twin, "k1", "changed")
    held = await held_of(process, world)
    assert held.unsaved.tracked

    async def missing(*_: Any) -> Any:
        raise errors.Corrupt("a node is missing")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(held.blobs, "get_many", missing)
        said = await row_proof.witness_now(world._handle)
    rows, _ = await world._handle.rows_at(said.height)
    assert said.root == root_of(rows.items())
    await process.close()


# --- Where they are ---------------------------------------------------------------------------------------------------


async def cold() -> tuple[Store, ColdCells, Unsaved]:
    store = Store()
    blobs = blob_layer.Blobs(store.engine, objects_memory.MemoryObjects(store.env), store.env, scenario.UNIVERSE)
    rows = {row_keys.cell("c", f"{number}"): Row(b"%030d" % number) for number in range(2_000)}
    rows[row_keys.cell("c", "large")] = Row(bytes(9_000))
    state = saved_state.whole(bytes(32), rows.items())
    await saved_state.save(blobs, state)
    unsaved = Unsaved(state.header)
    unsaved.track()
    return store, ColdCells(asyncio.get_running_loop(), blobs, unsaved), unsaved


async def test_cells_are_read_as_they_were_saved_or_changed_since() -> None:
    _, cells, unsaved = await cold()
    key = row_keys.cell("c", "7")
    assert await asyncio.to_thread(cells, key) == await cells.read(key) == Row(b"%030d" % 7)
    assert await asyncio.to_thread(cells, row_keys.cell("c", "large")) == Row(bytes(9_000))
    assert await asyncio.to_thread(cells, row_keys.cell("c", "none")) is None
    assert cells.misses == 3
    unsaved.take([model.put(key, Row(b"changed"))])
    assert cells(key) == await cells.read(key) == Row(b"changed")
    assert cells.misses == 3


async def test_what_is_read_ahead_is_not_waited_for() -> None:
    _, cells, _ = await cold()
    await cells.ahead([("c", "7"), ("c", "large"), ("c", "none"), ("c", "7")])
    assert cells(row_keys.cell("c", "7")) == Row(b"%030d" % 7)  # here nothing could be waited for
    assert cells(row_keys.cell("c", "large")) == Row(bytes(9_000))
    assert cells(row_keys.cell("c", "none")) is None
    assert cells.misses == 0


async def test_branches_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store, cells, _ = await cold()
    read: list[int] = []
    engine_read = store.engine.read

    async def counted(*requests: Any) -> Any:
        read.append(len(requests))
        return await engine_read(*requests)

    monkeypatch.setattr(store.engine, "read", counted)
    await cells.read(row_keys.cell("c", "7"))
    assert len(read) > 1
    read.clear()
    assert await cells.read(row_keys.cell("c", "7")) == Row(b"%030d" % 7)
    assert read == [1]
    monkeypatch.setattr(saved_state, "BRANCHES_KEPT", 1)
    for number in range(200):
        assert await cells.read(row_keys.cell("c", f"{number}")) == Row(b"%030d" % number)


async def test_an_event_loop_does_not_wait_for_itself() -> None:
    _, cells, _ = await cold()
    with pytest.raises(errors.CannotRead, match="an event loop cannot wait for it"):
        cells(row_keys.cell("c", "7"))


async def test_a_cell_that_cannot_be_read_is_named() -> None:
    store, cells, _ = await cold()
    store.erase([key for key, _ in store.under(*cas_keys.blobs(scenario.UNIVERSE))])
    named = r"cell c\['7'\] is damaged: node [0-9a-f]{64}, 0 below .* on the path to cell c\['7'\]: no blob"
    with pytest.raises(errors.DamagedCell, match=named):
        await asyncio.to_thread(cells, row_keys.cell("c", "7"))
    with pytest.raises(saved_state.BadNode, match="on the path to cell"):
        await cells.read(row_keys.cell("c", "7"))


async def test_a_large_cell_that_is_missing_is_named() -> None:
    store, cells, _ = await cold()
    key = row_keys.cell("c", "large")
    address = digest.sha256(bytes(9_000))
    store.erase([cas_keys.blob_key(scenario.UNIVERSE, address)])
    with pytest.raises(errors.DamagedCell, match=f"blob {address.hex()}, which holds cell c\\['large'\\]: no blob"):
        await asyncio.to_thread(cells, key)


async def test_a_store_that_is_away_damages_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    store, cells, _ = await cold()

    async def away(*_: Any) -> Any:
        raise errors.StoreUnavailable("it is away")

    monkeypatch.setattr(store.engine, "read", away)
    with pytest.raises(errors.CannotRead, match=r"cell c\['7'\] cannot be read now: it is away") as raised:
        await asyncio.to_thread(cells, row_keys.cell("c", "7"))
    assert not isinstance(raised.value, errors.DamagedCell)


def test_the_cells_that_an_input_is_for_show_without_running_code() -> None:
    app = program()

    def of(event: object) -> list[tuple[str, str]]:
        data = user_values.dump(event)
        item = inbox.InboxEvent(user_values.schema_name(type(event)), payload.inline(data))
        return cold_cells.reached(app, item, data)

    assert of(Put("a")) == [("Cell", "a")]
    assert of(Move("a", "b")) == [("Cell", "a")]
    assert cold_cells.reached(app, inbox.InboxEvent("Put", payload.EMPTY), b"\xff") == []
    assert cold_cells.reached(app, inbox.TimerFired(bytes(16), 0), b"") == []
    assert cold_cells.reached(app, None, b"") == []
