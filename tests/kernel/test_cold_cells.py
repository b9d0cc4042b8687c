"""Cells that are not in memory are fetched, and it makes no difference which were."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec
import pytest

import worldline as wl
from worldline import testing
from worldline.base import errors
from worldline.host.feature_list import PARTS
from worldline.kernel import replay, state_rows, user_values
from worldline.kernel import step as kernel_step
from worldline.kernel.machine import Machine
from worldline.kernel.rows import cells as kernel_cells
from worldline.kernel.rows.cells import Cells, value_bytes
from worldline.kernel.rows.row_records import UNREAD
from worldline.layers.history import step_reader
from worldline.model import ids, inbox, payload, row_keys, step_records
from worldline.model.change import Row
from worldline.model.rows import Rows
from worldline.model.trie.update import root_of

app = wl.Program("cold")
HOME = ids.Address(ids.UniverseId(bytes(16)), ids.WorldId(bytes(16)))


@dataclass(frozen=True)
class Put:
    key: str
    text: str


@dataclass(frozen=True)
class Move:
    key: str
    to: str


@dataclass(frozen=True)
class Break:
    key: str


@app.reducer(key="key")
@dataclass
class Cell:
    texts: list[str] = field(default_factory=list)
    drawn: float = 0.0

    @wl.on
    def put(self, event: Put) -> None:
        self.texts.append(event.text)
        self.drawn = wl.random().random()

    @wl.on
    def move(self, event: Move) -> None:
        other = wl.state(Cell, event.to)
        wl.emit(Put(event.to, f"{len(other.texts)} {self.texts[-1:]}"))
        self.texts.clear()

    @wl.on
    def break_(self, event: Break) -> None:
        self.texts.append("never kept")
        raise ValueError("broken")


@app.reducer
@dataclass
class Count:
    puts: int = 0

    @wl.on
    def put(self, event: Put) -> None:
        self.puts += 1


@app.workflow
async def watch(key: str) -> int:
    seen = 0
    while seen < 3:
        await wl.wait(Put, where=lambda each: each.key == key)
        seen += len(wl.state(Cell, key).texts) > 0
    return seen


class From:
    """The cells of some rows. `rows`: as the last durable step has left them."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.fetched = 0

    def __call__(self, key: bytes) -> Row | None:
        self.fetched += 1
        return self._rows.get(key)

    def root(self, rows: list[tuple[bytes, Row | None]]) -> bytes:
        known: dict[bytes, Row | None] = {**dict(self._rows.under(row_keys.CELL)), **dict(rows)}
        return root_of((key, row) for key, row in known.items() if row is not None)


def acts(world: testing.TestWorld, draw: Random) -> None:
    world.start(watch("k3"), id="w")
    for number in range(120):
        key, other = f"k{draw.randrange(30)}", f"k{draw.randrange(30)}"
        match draw.randrange(6):
            case 0:
                world.send(Move(key, other))
            case 1:
                with pytest.raises(testing.NotTaken):
                    world.send(Break(key))
            case 2:
                world.send(Put(key, "long " * 2_000))  # travels as a delta when it changes again
            case _:
                world.send(Put(key, f"{number}"))


@pytest.mark.parametrize("seed", range(4))
def test_cells_dropped_at_random_make_no_difference(seed: int) -> None:
    """A history, made with all cells in memory, is replayed with cells that are dropped at random between steps: every
    entry, digest and changed row is the same. The whole machine is dropped now and then, too.
    """
    draw = Random(seed)
    with testing.world(app, seed=seed, twice=False) as world:
        acts(world, draw)
        exported, expected = world._actor.life.export(""), state_rows.rows_of(world.machine)
    rows = Rows(state_rows.rows_of(Machine(app)))
    machine = state_rows.machine_of(app, Machine(app).state, rows.items(), exported.at, fetch=From(rows))
    head, fetch = exported.start, From(rows)

    def load(carried: payload.Payload) -> bytes:
        return carried.inline if carried.inline is not None else exported.blobs[carried.ref or b""]

    for entries, stored in zip(replay.steps(exported.filled()), exported.steps(), strict=True):
        if draw.random() < 0.1:
            machine.close()
            others = [(key, row) for key, row in rows.items() if not key.startswith(row_keys.CELL)]
            machine = state_rows.machine_of(app, head.state, others, exported.at, fetch=fetch)
        replay.check(machine, entries, exported.at, load, PARTS)
        head = step_reader.fold(head, [stored], rows, exported.blobs)
        assert machine.state == head.state
        for key in list(machine.cells):
            if draw.random() < 0.5:
                del machine.cells[key]
    assert fetch.fetched > 50
    assert list(rows.items()) == expected
    machine.close()


def given(event: object) -> step_records.Input:
    data = user_values.dump(event)
    return step_records.Input(inbox.InboxEvent(user_values.schema_name(type(event)), payload.inline(data)), data)


def at(number: int) -> step_records.StepContext:
    return step_records.StepContext(HOME, number, 1_000_000 * number, 0)


def test_the_cells_used_longest_ago_are_dropped() -> None:
    rows = Rows()
    machine = Machine(app, fetch=From(rows))
    for number in range(100):
        stepped = kernel_step.step(machine, given(Put(f"k{number}", "x" * 500)), at(number + 1), PARTS)
        rows.apply(stepped.changes)
    rows.apply(kernel_step.step(machine, given(Put("k0", "again")), at(101), PARTS).changes)
    assert len(machine.cells) == 101
    assert machine.cells.cool(20_000) > 80
    assert ("Cell", "k0") in machine.cells  # used last
    assert ("Cell", "k99") in machine.cells
    assert machine.cells.cool(0) == 0  # nothing was added since: they are not looked at again
    assert machine.read_cell(Cell, "k50").texts == ["x" * 500]
    assert machine.read_cell(Cell, "never").texts == []
    assert ("Cell", "k50") in machine.cells


@dataclass
class Texts:
    texts: list[str] = field(default_factory=list)


@dataclass
class Numbers:
    numbers: dict[str, int] = field(default_factory=dict)


class Floats(msgspec.Struct):
    floats: list[float] = []


@dataclass
class Nothing:
    pass


VALUES: dict[str, Callable[[int], Any]] = {
    "small": lambda number: Texts([f"{number}"]),
    "one long text": lambda _: Texts(["x" * 3_000]),
    "many short texts": lambda number: Texts([f"{number} {each}" for each in range(60)]),
    "thousands of texts": lambda number: Texts([f"{number} {each}" for each in range(3_000 if number < 30 else 0)]),
    "a dict": lambda number: Numbers({f"key {each}": number * 1_000 + each for each in range(40)}),
    "a struct": lambda number: Floats([number / (each + 1) for each in range(100)]),
    "large ones among small": lambda number: Texts(["x" * 5_000] if number % 7 == 0 else []),
    "not read": lambda _: UNREAD,
}


@pytest.mark.parametrize("name", VALUES)
def test_what_cells_take_in_memory_is_not_underrated(name: str) -> None:
    count = 30 if name == "thousands of texts" else 600
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        cells = Cells(From(Rows()))
        for number in range(count):
            value = VALUES[name](number)
            data = user_values.dump(Texts(["x"] * 5) if value is UNREAD else value)
            cells.new(("Cell", f"key {number}"), value, data)
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.8 * taken < cells.size() < 2 * taken


def test_values_that_are_large_for_their_bytes_are_counted_as_they_are() -> None:
    """A short text takes ten times its bytes."""
    cells = Cells(From(Rows()))
    for number in range(100):
        value = Texts([f"{each}" for each in range(500)])
        cells.new(("Cell", f"{number}"), value, user_values.dump(value))
    assert 20 * len(next(iter(cells.values())).data) * len(cells) > cells.size() > 500 * 50 * len(cells)
    assert 70 <= cells.cool(cells.size() // 4) <= 80
    assert len(cells) <= 30


def test_what_is_no_part_of_a_value_is_not_counted() -> None:
    for shared in (Nothing, kernel_cells, value_bytes, len, None, True):
        assert value_bytes([shared]) == sys.getsizeof([shared])
    assert value_bytes(Nothing()) < 500


def test_a_machine_with_all_its_cells_drops_none() -> None:
    machine = Machine(app)
    kernel_step.step(machine, given(Put("k", "x")), at(1), PARTS)
    assert machine.cells.cool(0) == 0
    assert machine.cells.are_all


def test_a_cell_that_cannot_be_fetched_fails_the_step_and_nothing_is_journaled() -> None:
    """Also if the code of a handler catches what it gets."""

    class Away(From):
        def __call__(self, key: bytes) -> Row | None:
            raise errors.CannotRead("the store is away")

    for event in (Put("k", "x"), Break("k")):
        with pytest.raises(errors.CannotRead, match="the store is away"):
            kernel_step.step(Machine(app, fetch=Away(Rows())), given(event), at(1), PARTS)


def test_a_copy_has_the_same_cells_in_memory_and_fetches_the_others() -> None:
    rows = Rows()
    machine = Machine(app, fetch=From(rows))
    for number, key in enumerate(("a", "b"), 1):
        rows.apply(kernel_step.step(machine, given(Put(key, "x")), at(number), PARTS).changes)
    del machine.cells["Cell", "a"]
    copy = state_rows.copy_of(machine, HOME)
    assert list(copy.cells) == sorted(machine.cells)
    assert copy.read_cell(Cell, "a").texts == ["x"]
    assert ("Cell", "a") not in machine.cells
    with pytest.raises(AssertionError):
        state_rows.save(machine)
