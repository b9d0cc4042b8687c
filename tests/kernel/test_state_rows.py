"""Snapshots: equal states have equal bytes, what is loaded is what was saved, and any state can be saved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

import worldline as wl
from tests.kernel import shop
from worldline import testing
from worldline.base import errors, limits
from worldline.codec import canonical
from worldline.kernel import state_rows, user_values
from worldline.kernel.machine import Machine
from worldline.kernel.rows.row_ledger import RecordQueue
from worldline.kernel.rows.row_records import Buffered, Op, Outcome, Pending, Record, Resume, RunStatus
from worldline.kernel.run_operations import OpKind
from worldline.model import ids
from worldline.model.change import Row
from worldline.model.inbox import ReceiptStatus
from worldline.model.work import WorkKind

HERE = ids.Address(ids.UniverseId(b"u" * 16), ids.WorldId(b"w" * 16))
THERE = ids.Address(ids.UniverseId(b"v" * 16), ids.WorldId(b"x" * 16))

app = wl.Program("big")


@dataclass(frozen=True)
class Stored:
    key: str
    size: int


@app.effect
async def fetch(text: str) -> str:
    return text


@app.reducer(key="key")
@dataclass
class Blob:
    text: str = ""
    seen: list[int] = field(default_factory=list)

    @wl.on
    def stored(self, event: Stored) -> None:
        self.text = event.key * event.size
        self.seen.append(event.size)


@app.workflow
async def busy(count: int) -> str:
    _ = wl.start(busy_child(), id="child")
    await wl.wait(shop.Approved)
    for number in range(count):
        await fetch(str(number))
    async with wl.scope(timeout=100) as scope:
        _ = scope.start(fetch("slow"))
        await wl.sleep(1000)
    return "done"


@app.workflow
async def busy_child() -> None:
    await wl.wait(shop.Rejected)


@app.workflow
async def fans_out(count: int, size: int) -> int:
    return len(await wl.gather(*[fetch("x" * size) for _ in range(count)]))


def saved(machine: Machine) -> list[bytes]:
    return state_rows.save(machine)


def check(machine: Machine) -> None:
    """What is loaded is what was saved, anywhere, and its bytes name no world."""
    parts = saved(machine)
    for home in (HERE, THERE):
        loaded = state_rows.load(machine.program, parts, home)
        assert saved(loaded) == parts
        assert loaded.origin.program_hash == machine.program.hash
        assert list(loaded.runs) == list(machine.runs)
        assert list(loaded.live) == list(machine.live)
        assert list(loaded.work.open.values()) == list(machine.work.open.values()), "in order"
        loaded.close()
    everything = b"".join(parts)
    assert bytes(HERE.world) not in everything
    assert b"worldline/tests." not in everything


def lived(world: testing.TestWorld) -> None:
    world.start(busy(3), id="b")
    world.send(Stored("a", 3))
    world.send(Stored("b", 4))
    world.send(shop.Approved("o1"))
    world.send(shop.Approved("o2"), to="b")
    world.start(busy(0), id="b2")


def test_save_and_load_of_a_busy_world() -> None:
    script = wl.Script().on(fetch, "x", "y", "z", wl.Script.never())
    with testing.world(app, script) as world:
        check(world.machine)
        lived(world)
        assert world.machine.work.open
        check(world.machine)
        world.advance(50)
        check(world.machine)


def test_equal_states_have_equal_bytes_warm_cold_and_elsewhere() -> None:
    script = wl.Script().on(fetch, "x", "y", "z", wl.Script.never())
    with testing.world(app, script, drops=False) as warm, testing.world(app, script) as cold:
        other = warm.also("other", app, script)
        for world in (warm, cold, other):
            lived(world)
        cold.crash()
        assert saved(warm.machine) == saved(cold.machine) == saved(other.machine)
        assert other.address != warm.address


@pytest.mark.parametrize("size", [100, limits.INLINE_BYTES_MAX + 1, 1_000_000])
def test_big_cells(size: int) -> None:
    with testing.world(app, twice=False) as world:
        world.send(Stored("a", size))
        check(world.machine)
        world.crash()
        assert len(world.state(Blob, "a").text) == size
        world.prove()


def test_more_than_sixteen_mebibytes_in_all() -> None:
    with testing.world(app, twice=False) as world:
        for key in "abcdefghijklmnopqrst":
            world.send(Stored(key, 1_000_000))
        parts = saved(world.machine)
        assert sum(map(len, parts)) > 16 * limits.MIB
        assert max(map(len, parts)) < 3 * limits.MIB
        check(world.machine)


def record(**changes: Any) -> Record:
    made = Record("r", "busy_child", user_values.dump({}), b"s" * 16, True, 1, ops=[], log=[], number=1)
    return msgspec.structs.replace(made, **changes)


def buffer(event: Buffered, count: int) -> RecordQueue[Buffered]:
    made: RecordQueue[Buffered] = RecordQueue()
    made.extend([event] * count)
    return made


def outcome(size: int) -> Outcome:
    return Outcome(ReceiptStatus.OK, user_values.dump("x" * size))


@pytest.mark.parametrize(
    "big",
    [
        record(ops=[Op(OpKind.EFFECT, "fetch", b"d" * 16, outcome=outcome(100_000)) for _ in range(200)]),
        record(ops=[Op(OpKind.EFFECT, "fetch", b"d" * 16, step=number) for number in range(30_000)]),
        record(ops=[Op(OpKind.EFFECT, "fetch", b"d" * 16, outcome=outcome(16 * limits.MIB - 100_000))] * 2),
        record(log=[Resume(number) for number in range(100_000)]),
        record(buffer=buffer(Buffered("Approved", b"x" * 10_000), 2_000)),
        record(args=b"a" * 15 * limits.MIB, data=b"d" * 15 * limits.MIB, status=RunStatus.FAILED),
    ],
    ids=["outcomes", "operations", "huge outcomes", "resumptions", "buffer", "arguments and result"],
)
def test_a_run_of_any_size_can_be_saved(big: Record) -> None:
    machine = Machine(app)
    machine.add_run(big)
    parts = saved(machine)
    loaded = state_rows.load(app, parts, HERE)
    assert loaded.runs["r"].record == big
    assert saved(loaded) == parts
    assert max(map(len, parts)) <= limits.CBOR_BYTES_MAX


def test_much_open_and_held_back_work_can_be_saved() -> None:
    with testing.world(app, wl.Script().on(fetch, wl.Script.never()), twice=False) as world:
        world.start(fans_out(1_500, 15_000), id="f")
        assert len(world.machine.work.open) == 1_500
        check(world.machine)
    with testing.world(app, wl.Script().on(fetch, wl.Script.never()), twice=False) as world:
        world.machine.work.unsent.extend([])
        call = fans_out(200, 10)
        world.start(call, id="f")
        check(world.machine)


def test_work_that_a_fork_asks_for_in_an_operations_place() -> None:
    with testing.world(app, wl.Script().on(fetch, wl.Script.never()), twice=False) as world:
        world.start(fans_out(1, 1), id="f")
        machine = world.machine
        [(intent, pending)] = machine.work.open.items()
        other = msgspec.structs.replace(pending, name="other", params=b"\x80")
        del machine.work.open[intent]
        machine.work.reopen(other, HERE)
        machine.runs[pending.run].opened(pending.op, other)
        check(machine)


def test_very_many_timers_can_be_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CBOR_ITEMS_MAX", 20_000)  # a fiftieth, with as many fewer timers
    machine = Machine(app)
    for number in range(2_400):
        pending = Pending(number + 1, WorkKind.TIMER, "late", b"12345678", 1, number, 1, 2, 0, "", number, "late")
        machine.work.reopen(pending, HERE)
    parts = saved(machine)
    loaded = state_rows.load(app, parts, HERE)
    assert loaded.work.open == machine.work.open


def test_a_reducer_that_is_gone_keeps_its_cells() -> None:
    less = wl.Program("big")
    with testing.world(app) as world:
        world.send(Stored("a", 3))
        parts = saved(world.machine)
    machine = state_rows.load(less, parts, HERE)
    loaded = state_rows.load(app, saved(machine), HERE)
    assert loaded.read_cell(Blob, "a").text == "aaa"


def test_what_is_no_snapshot_is_refused() -> None:
    good = saved(Machine(app))

    def with_row(key: bytes) -> list[bytes]:
        return state_rows.parts_of(bytes(32), [(key, Row(b"\x80"))])

    for parts, reason in [
        ([canonical.encode([1, 99])], "header of version 99"),
        ([b"\xff"], "canonical"),
        (good[:1], "missing or damaged"),
        ([good[0], good[1][:-1] + b"x"], "missing or damaged"),
        (with_row(b""), "no row has a key"),
        (with_row(b"Qx"), "no row has a key"),
        (with_row(b"MC"), "the row"),
        (with_row(b"R\x00\x01rX"), "no row of a run"),
        (with_row(b"R\x00\x09r"), "cut off"),
    ]:
        with pytest.raises(errors.DecodeError, match=reason):
            state_rows.load(app, parts, HERE)
