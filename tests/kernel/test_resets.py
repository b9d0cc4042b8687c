"""Resets: a run goes on from one of its operations, or from its start."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import worldline as wl
from tests.kernel.flows import Go, Said, asked, edited, flow, program, two, world
from worldline import testing
from worldline.base import errors
from worldline.kernel import run_repair
from worldline.kernel.rows.row_records import RunStatus
from worldline.model.journal import Kind


def test_a_blocked_run_is_reset_to_where_its_code_has_changed_and_goes_on_live() -> None:
    app = program(two)
    with world(app) as w:
        run = w.start(flow(app), id="r")
        other = program(edited)
        w.adopt(other)
        w.send(Go(7), to="r")
        assert run.status is RunStatus.BLOCKED
        run.reset(to=2)
        assert run.result() == ["first", "second", 7], "the event that came is in its buffer"
        assert (asked(w, "first"), asked(w, "second")) == (1, 1), "what is before the reset is not asked for again"
        w.crash()
        assert w.machine.runs["r"].record.status is RunStatus.FINISHED


def test_events_that_dropped_waits_had_taken_come_first_again() -> None:
    async def body(first: Any) -> list[int]:
        seen = [(await wl.wait(Go)).number for _ in range(3)]
        await first("x")
        return [*seen, (await wl.wait(Go)).number]

    app = program(body)
    with world(app) as w:
        run = w.start(flow(app), id="r")
        for number in (1, 2, 3):
            w.send(Go(number), to="r")
        run.reset(to=2)
        w.send(Go(4), to="r")
        assert run.result() == [1, 2, 3, 4]
        assert asked(w, "first") == 2
        assert w.machine.runs["r"].record.again == 1
        w.prove()


@pytest.mark.parametrize("to", ["start", 1])
def test_a_reset_to_the_start_runs_everything_again_with_the_same_draws(to: Any) -> None:
    drawn: list[float] = []

    async def body(first: Any) -> str:
        number = wl.random().random()
        if number not in drawn:
            drawn.append(number)
        wl.emit(Said("begins"))
        await first("x")
        await wl.wait(Go)
        return "done"

    app = program(body)
    with world(app) as w:
        run = w.start(flow(app), id="r")
        run.reset(to=to)
        w.send(Go(), to="r")
        assert run.result() == "done"
        assert len(drawn) == 1
        assert w.state(app.log).said == ["begins", "begins"]
        assert asked(w, "first") == 2
        w.prove()


def test_what_lies_between_operations_is_done_again_only_behind_the_reset() -> None:
    async def body(first: Any, second: Any) -> list[Any]:
        wl.emit(Said("one"))
        a = await first("a")
        wl.emit(Said("two"))
        timer = wl.start(second("kept"))
        wl.emit(Said("three"))
        b = await second("b")
        wl.emit(Said("four"))
        await wl.wait(Go)
        return [a, await timer, b]

    app = program(body)
    with world(app) as w:
        run = w.start(flow(app), id="r")
        said = w.state(app.log).said
        assert said == ["one", "two", "three", "four"]
        run.reset(to=3)  # the second of two operations that one feeding has issued
        assert w.state(app.log).said == [*said, "four"], "'three' was said in front of the operation"
        assert asked(w, "second") == 3
        w.send(Go(), to="r")
        assert run.result() == ["first", "second", "second"]
        w.prove()


def test_open_work_of_dropped_operations_is_closed_and_late_answers_are_late() -> None:
    async def body(first: Any) -> Any:
        await first("a")
        async with wl.scope(timeout=50):
            await wl.sleep(100)

    app = program(body)
    with world(app) as w:
        run = w.start(flow(app), id="r")
        opened = len(w.machine.work.open)
        run.reset(to=2)
        assert len(w.machine.work.open) == opened
        assert [entry.kind for entry in w.journal()].count(Kind.TIMER_CANCELLED) == 2
        assert run.result() is None
        assert (w.now - datetime(2024, 1, 1, tzinfo=UTC)).total_seconds() == 50
        w.prove()


@pytest.mark.parametrize("to", [2, 3])
def test_a_timeout_of_a_scope_that_is_kept_is_not_lost(to: int) -> None:
    async def body(first: Any) -> Any:
        async with wl.scope(timeout=5) as inner:
            await first("a")
        await wl.wait(Go)
        return inner.timed_out

    app = program(body)
    with testing.world(app, wl.Script().on(app.effects["first"], wl.Script.never())) as w:
        run = w.start(flow(app), id="r")
        w.advance(6)
        run.reset(to=to)
        w.send(Go(), to="r")
        assert run.result() is True
        w.prove()


def test_children_of_dropped_operations_are_cancelled_and_what_outlives_goes_on() -> None:
    async def nap() -> str:
        await wl.sleep(10)
        return "slept"

    async def body(first: Any, child: Any, other: Any) -> Any:
        await first("a")
        outlives = wl.start(other(), id="named")
        return [await child(), await outlives]

    app = program(body, child=nap, other=nap)
    with world(app) as w:
        run = w.start(flow(app), id="r")
        old = w.attach("r/2")
        run.reset(to=2)
        assert old.status is RunStatus.CANCELLED
        assert w.attach("named").status is RunStatus.RUNNING
        assert w.attach("r/1.2").status is RunStatus.RUNNING, "the new incarnation has a child of its own"
        assert run.result() == ["slept", "slept"]
        assert "named" in w.machine.runs
        w.prove()


def test_what_may_happen_twice_is_listed() -> None:
    async def nap() -> None:
        await wl.sleep(10)

    async def body(first: Any, child: Any) -> Any:
        await wl.sleep(1)
        await first("a")
        wl.after(5, Said("later"))
        wl.start(child(), id="named")
        await wl.wait(Go)

    app = program(body, child=nap)
    with world(app) as w:
        run = w.start(flow(app), id="r")
        w.advance(2)
        record = w.machine.runs["r"].record
        found = run_repair.twice(record, 2)
        assert [(each.op, each.what, each.done) for each in found] == [
            (2, "effect 'first' (text='a')", True),
            (3, "after 'Said' (text='later')", False),
            (4, "start 'child' ()", False),
        ]
        assert [each.op for each in run_repair.twice(record, 3)] == [3, 4]
        assert run_repair.twice(record, 5) == []
        assert run.status is RunStatus.RUNNING


def test_an_ended_run_is_reset_to_its_start_and_its_parent_keeps_its_answer() -> None:
    failing = [True]

    async def fragile() -> str:
        if failing[0]:
            raise ValueError("not yet")
        return "well"

    async def body(child: Any) -> str:
        try:
            await child()
        except wl.RunFailed:
            await wl.wait(Go)
            return "went on"
        return "no"

    app = program(body, child=fragile)
    with world(app) as w:
        run = w.start(flow(app), id="r")
        child = w.attach("r/0")
        assert child.status is RunStatus.FAILED
        with pytest.raises(errors.Closed, match="can be reset to its start alone"):
            child.reset(to=2)
        failing[0] = False
        child.reset()
        assert child.result() == "well"
        w.send(Go(), to="r")
        assert run.result() == "went on"


def test_a_cancellation_that_waits_goes_on_waiting_and_one_that_was_delivered_is_undone() -> None:
    async def body(first: Any, second: Any) -> str:
        await first("a")
        try:
            await wl.wait(Go)
        except wl.Cancelled:
            await second("clean up")
            await wl.wait(Go)
            return "cleaned"
        return "went on"

    app = program(body)
    with world(app) as w:
        run = w.start(flow(app), id="r")
        run.cancel("enough")
        assert asked(w, "second") == 1
        run.reset(to=2)
        w.send(Go(), to="r")
        assert run.result() == "went on"


def test_a_reset_says_what_it_expects_and_is_made_once() -> None:
    app = program(two)
    with world(app) as w:
        run = w.start(flow(app), id="r")
        wanted = run_repair.reset_run("r", 1, again=0)
        for _ in range(3):
            w.command(run_repair.RESET, wanted)
        assert w.machine.runs["r"].record.again == 1
        assert asked(w, "first") == 2
        for to in (0, -1, "end", True, 1.5):
            with pytest.raises(errors.BadInput, match='is reset to "start" or to an operation'):
                run.reset(to=to)
        with pytest.raises(errors.NotFound, match="has no operation 9; it has 2"):
            run.reset(to=9)


def test_a_reset_that_never_comes_to_where_it_turns_live_is_blocked_again() -> None:
    app = program(two)

    async def other(first: Any, second: Any) -> Any:
        await second("something else")

    async def shorter(first: Any) -> Any:
        return await first("a")

    with world(app) as w:
        run = w.start(flow(app), id="r")
        w.adopt(program(other))
        run.reset(to=2)
        assert run.status is RunStatus.BLOCKED
        w.crash()
        w.adopt(program(shorter))
        assert run.result() == "first", "it asks for nothing more, and ends where it turns live"


def test_code_that_asks_for_more_in_the_last_feeding_is_reset_behind_the_last_operation() -> None:
    async def before(first: Any) -> Any:
        await first("a")
        await wl.wait(Go)

    async def after(first: Any, second: Any) -> Any:
        await first("a")
        started = wl.start(second("new"))
        return [await started, (await wl.wait(Go)).number]

    app = program(before)
    with world(app) as w:
        run = w.start(flow(app), id="r")
        w.adopt(program(after))
        w.send(Go(5), to="r")
        assert run.status is RunStatus.BLOCKED
        run.reset(to=2)
        assert run.result() == ["second", 5]


# --- Any operation, any time ----------------------------------------------------------------------------------------


async def slow() -> str:
    await wl.sleep(2)
    return "child"


async def rich(first: Any, second: Any, child: Any) -> list[Any]:
    """A bit of everything, so that there is an operation of every kind to go back to."""
    said: list[Any] = [await first("a"), wl.patched("p"), wl.random().random()]
    async with wl.scope(timeout=100):
        x, y = wl.start(first("x")), wl.start(child())
        said.append(await second("b"))
        said.append((await wl.wait(Go, timeout=50)).number)
        await wl.sleep(1)
        said += [await x, await y]
    try:
        async with wl.scope(timeout=3):
            await wl.wait(Said)
    except wl.Cancelled:
        said.append("never")
    said += await wl.gather(first("g1"), child(), second("g2"))
    wl.emit(Said("done"))
    said += [(await wl.wait(Go)).number, wl.uuid().hex]
    return said


def lived(app: Any, *, stop: int, to: int | None) -> tuple[list[Any], int]:
    """The run's result, after a reset at one of several moments; and how many operations it had then."""
    with world(app) as w:
        run = w.start(flow(app), id="r")
        moments: list[Callable[[], None]] = [
            lambda: w.send(Go(1), to="r"),
            lambda: w.advance(1.5),
            lambda: w.advance(2),
            lambda: w.advance(20),
        ]
        for index, pass_on in enumerate(moments):
            if index == stop:
                break
            pass_on()
        count = len(w.machine.runs["r"].record.ops)
        if to is not None:
            run.reset(to=to)
            w.crash()
        for pass_on in moments[stop:]:
            pass_on()
        w.advance(20)
        w.send(Go(2), to="r")
        result = run.result()
        w.prove()
        return result, count


@pytest.mark.parametrize("stop", range(5))
def test_a_reset_to_any_operation_at_any_time_ends_the_same(stop: int) -> None:
    app = program(rich, child=slow)
    expected, count = lived(app, stop=stop, to=None)
    for to in range(1, count + 2):
        assert lived(app, stop=stop, to=to)[0] == expected, to
