"""The state as rows: what a step writes, what it leaves out, and what its digest depends on."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

import worldline as wl
from worldline import testing
from worldline.base import errors
from worldline.codec import canonical, tuples
from worldline.kernel import control_commands, state_rows
from worldline.kernel.rows.row_ledger import Group, RecordQueue, RowLedger, Written
from worldline.kernel.rows.row_records import RunId
from worldline.layers.history import step_reader
from worldline.model import row_keys as keys
from worldline.model.change import Change
from worldline.model.rows import Rows
from worldline.testing.life import Life

app = wl.Program("rows")


@dataclass(frozen=True)
class Said:
    text: str


@dataclass(frozen=True)
class Look(wl.Request[int]):
    pass


@app.reducer
@dataclass
class Talk:
    lines: list[str] = field(default_factory=list)

    @wl.on
    def said(self, event: Said) -> None:
        self.lines.append(event.text)

    @wl.on
    def look(self, event: Look) -> int:
        return len(self.lines)


@app.effect
def echo(number: int) -> int:
    return number


@app.workflow
async def counts(up_to: int) -> int:
    total = 0
    for number in range(up_to):
        total += await echo(number % 10)
    return total


@app.workflow
async def naps(seconds: int) -> str:
    async with wl.scope(timeout=seconds * 2):
        await wl.sleep(seconds)
    event = await wl.wait(Said, timeout=seconds)
    return event.text


# --- The ledger ------------------------------------------------------------------------------------------------------


def row(number: int) -> Written:
    return [number], [], b""


def put(group: Group, key: bytes, number: int = 1, *, is_new: bool = False) -> None:
    group.put(key, lambda: row(number), is_new=is_new)


def shown(changes: list[Change]) -> list[tuple[bytes, object]]:
    return [
        (each.key, "group" if each.is_group else None if each.row is None else canonical.decode(each.row.meaning))
        for each in changes
    ]


def test_a_row_is_written_once_as_it_is_at_the_end() -> None:
    ledger = RowLedger()
    put(ledger.top, b"b", 1)
    put(ledger.top, b"a", 2)
    put(ledger.top, b"b", 3)
    assert shown(ledger.collect()) == [(b"a", [2]), (b"b", [3])]
    assert ledger.collect() == []


def test_what_came_and_went_leaves_no_trace() -> None:
    ledger = RowLedger()
    put(ledger.top, b"new", is_new=True)
    ledger.top.gone(b"new")
    put(ledger.top, b"old")
    ledger.top.gone(b"old")
    assert shown(ledger.collect()) == [(b"old", None)]
    ledger.top.gone(b"key")
    put(ledger.top, b"key", is_new=True)  # the same key again
    ledger.top.gone(b"key")
    assert shown(ledger.collect()) == [(b"key", None)]


def test_a_group_is_dropped_in_one_change_before_its_new_rows() -> None:
    ledger = RowLedger()
    group = Group(ledger, b"g")
    put(group, b"1")
    put(ledger.top, b"a")
    group.drop()
    put(group, b"2")
    assert shown(ledger.collect()) == [(b"g", "group"), (b"a", [1]), (b"g2", [1])]
    group.drop()
    put(group, b"3")
    group.gone(b"3")
    group.gone(b"2")  # it went with the group
    assert shown(ledger.collect()) == [(b"g", "group")]


def test_a_new_group_has_nothing_to_drop() -> None:
    ledger = RowLedger()
    group = Group(ledger, b"g", is_new=True)
    put(group, b"1")
    group.drop()
    assert ledger.collect() == []
    put(group, b"1")
    ledger.collect()
    group.drop()
    assert shown(ledger.collect()) == [(b"g", "group")]


def test_a_group_that_is_dropped_and_another_of_its_name() -> None:
    ledger = RowLedger()
    Group(ledger, b"g").drop()
    put(Group(ledger, b"g", is_new=True), b"1")
    assert shown(ledger.collect()) == [(b"g", "group"), (b"g1", [1])]


def test_numbers_of_a_queue_depend_on_what_is_there() -> None:
    ledger = RowLedger()
    queue: RecordQueue[RunId] = RecordQueue(ledger.top, b"Q")
    queue.extend(map(RunId, "abc"))
    queue.popleft()
    assert [key for key, _ in queue.rows()] == [b"Q" + keys.number(1), b"Q" + keys.number(2)]
    queue.keep(lambda each: RunId("d") if each.id == "b" else None)
    queue.append(RunId("e"))
    assert shown(ledger.collect()) == [(b"Q" + keys.number(1), ["d"]), (b"Q" + keys.number(2), ["e"])]
    queue.clear()
    queue.append(RunId("f"))
    assert shown(ledger.collect())[0] == (b"Q" + keys.number(0), ["f"])


@pytest.mark.parametrize(
    "broken", [b"", b"Z", b"C\x00\x01", b"Cxx", b"W", b"Wx", b"O\x00\x01rO", b"MX", b"Z\x00\x01\xff"]
)
def test_what_is_no_key_is_refused(broken: bytes) -> None:
    with pytest.raises(errors.DecodeError):
        keys.parse(broken)


# --- What a step writes ----------------------------------------------------------------------------------------------


def written(world: testing.TestWorld) -> list[int]:
    """The stored bytes of each step's changes."""
    return [len(each.stored) for each in world._actor.life.changed]


def test_a_long_run_writes_no_more_for_each_operation() -> None:
    count = 1_500
    with testing.world(app, wl.Script().on(echo, echo.function), twice=False, drops=False) as world:
        assert world.run(counts(count)) > 0
        sizes = written(world)
        assert len(sizes) > count
        early, late = sizes[10:20], sizes[count - 20 : count - 10]
        assert max(late) <= max(early) + 20, "numbers grow by some bytes, and nothing else does"


def test_an_answer_and_the_next_effect_are_three_rows() -> None:
    with testing.world(app, wl.Script().on(echo, echo.function), twice=False, drops=False) as world:
        life = world._actor.life
        changed: list[list[tuple[bytes, bytes]]] = []
        step = life.step

        def noted(*args: object, **options: object) -> object:
            stepped = step(*args, **options)  # type: ignore[arg-type]
            parsed = [keys.parse(each.key) for each in stepped.changes if not each.is_group]
            changed.append([(each.kind, each.part) for each in parsed])
            return stepped

        life.step = noted  # type: ignore[assignment, method-assign]
        world.run(counts(3))
    a_round = [(keys.PROGRESS, keys.OUTCOME), (keys.PROGRESS, keys.FEEDING), (keys.PROGRESS, keys.OP)]
    assert changed.count(a_round) == 2, "an outcome, a feeding, and an operation with its work"


def test_work_that_comes_back_is_in_the_order_in_which_it_was_asked_for() -> None:
    with testing.world(app, wl.Script().on(echo, wl.Script.never()), twice=False) as world:
        for run in ("z", "b", "a"):
            world.start(counts(1), id=run)
        world.start(naps(9), id="m")
        before = list(world.machine.work.open.items())
        world.crash()
        assert list(world.machine.work.open.items()) == before
        assert [pending.run for _, pending in before] == ["z", "b", "a", "m", "m"]


def test_what_an_entry_has_is_not_stored_again() -> None:
    text = "x" * 3_000
    with testing.world(app, twice=False) as world:
        run = world.start(naps(1), id="n")
        world.advance(1)
        world.send(Said(text), to="n")
        assert run.result() == text
        assert sum(written(world)) < len(text), "args, event, outcome and result are in entries"
        world.crash()
        assert world.attach("n").result() == text


def test_a_large_row_travels_as_a_delta() -> None:
    with testing.world(app) as world:
        for number in range(300):
            world.send(Said(f"line {number} " + "y" * 80))
        sizes = written(world)[100:]
        assert sum(sizes) < 20 * len(sizes) * 100, "not an image of 20 KB for each line"
        world.crash()
        assert len(world.state(Talk).lines) == 300


def test_a_look_changes_nothing() -> None:
    with testing.world(app) as world:
        world.send(Said("a"))
        before = world.head
        assert world.ask(Look()) == 1
        assert (world.head.step, world.head.state) == (before.step + 1, before.state)
        assert written(world)[-1] == 0


def test_every_step_folds_to_the_rows_of_the_machine() -> None:
    with testing.world(app, wl.Script().on(echo, echo.function), twice=False) as world:
        life = world._actor.life
        step = life.step
        rows = Rows(state_rows.rows_of(world.machine))
        count = 0

        def checked(*args: object, **options: object) -> object:
            nonlocal count
            count += 1
            stepped = step(*args, **options)  # type: ignore[arg-type]
            rows.apply(stepped.changes)
            assert list(rows.items()) == state_rows.rows_of(life.machine)
            return stepped

        life.step = checked  # type: ignore[assignment, method-assign]
        world.start(counts(5), id="c")
        world.start(naps(3), id="n")
        world.send(Said("early"))
        world.advance(30)
        world.command(control_commands.CANCEL, control_commands.CancelRun("n", "late"))
        assert count >= 10


def test_twins_whose_clocks_differ_have_equal_states() -> None:
    def live(start: datetime, pause: float) -> list[bytes]:
        with testing.world(app, wl.Script().on(echo, echo.function), now=start, drops=False) as world:
            world.start(naps(5), id="n")
            world.advance(pause)
            world.start(counts(3), id="c")
            world.advance(10)
            world.send(Said("x"))
            world.advance(60)
            return [each.state for each in world.journal() if each.state]

    first = live(datetime(2024, 1, 1, tzinfo=UTC), 1)
    assert first == live(datetime(2031, 5, 7, 3, tzinfo=UTC) + timedelta(microseconds=17), 2.5)
    assert len(first) >= 8


def look(steps: list[step_reader.StoredStep], life: Life, rows: Rows) -> None:
    for step in steps:
        assert step_reader.needed(step) == []
    step_reader.fold(life.baseline.head, steps, rows, life.blobs)


def test_a_changed_byte_of_a_change_is_found() -> None:
    with testing.world(app, twice=False) as world:
        world.send(Said("a"))
        world.send(Said("b"))
        life = world._actor.life
        good = life.export("").steps()
        for index in range(len(good[1].changes)):
            broken = bytearray(good[1].changes)
            broken[index] ^= 1
            _, rows = state_rows.read(life.baseline.parts)
            steps = [good[0], good[1].with_changes(bytes(broken))]
            with pytest.raises(errors.Corrupt, match=r"step 2, which ends at height 2"):
                look(steps, life, Rows(rows))


@pytest.mark.parametrize("value", [0, 1, 255, 256, 1_023, 1_024, 65_535, 65_536, 2**24 - 1, 2**24, 2**56 - 1, 2**63])
def test_numbers_in_keys_are_packed_as_tuples(value: int) -> None:
    assert keys.number(value) == tuples.pack((value,))
