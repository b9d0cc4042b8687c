"""Scopes: timeouts, shields, cancellation with a reason; compensation; nothing is left behind."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import worldline as wl
from worldline import testing
from worldline.kernel.rows.row_records import RunStatus

START = datetime(2024, 1, 1, tzinfo=UTC)
app = wl.Program("scopes")


@app.effect
async def work(text: str) -> str:
    return text


@app.effect
async def undo(text: str) -> str:
    return text


@app.workflow
async def nap(seconds: int) -> int:
    await wl.sleep(seconds)
    return seconds


@app.workflow
async def limited(seconds: int) -> str:
    async with wl.scope(timeout=10) as limit:
        await wl.sleep(seconds)
        return "in time"
    assert limit.timed_out
    return "too late"


@app.workflow
async def nested() -> list[str]:
    said = []
    async with wl.scope(timeout=10) as outer:
        async with wl.scope(timeout=20) as inner:
            await wl.sleep(15)
        said.append("not reached")
    said.append(f"{outer.timed_out} {inner.timed_out}")
    async with wl.scope(timeout=20) as outer:
        async with wl.scope(timeout=10) as inner:
            await wl.sleep(15)
        said.append("reached")
        await wl.sleep(15)
    said.append(f"{outer.timed_out} {inner.timed_out}")
    return said


@app.workflow
async def compensates(order: str) -> str:
    try:
        await work(order)
        await wl.sleep(100)
    except wl.Cancelled as cancelled:
        async with wl.scope(shield=True):
            await undo(f"{order}: {cancelled.reason}")
            await wl.sleep(5)
        raise
    return "done"


@app.workflow
async def shielded() -> str:
    async with wl.scope(shield=True):
        await wl.sleep(50)
    await wl.sleep(1)
    return "not reached"


@app.workflow
async def joins() -> list[int]:
    async with wl.scope() as scope:
        runs = [scope.start(nap(seconds)) for seconds in (3, 1, 2)]
    return [await run for run in runs]


@app.workflow
async def fails_inside() -> str:
    try:
        async with wl.scope() as scope:
            _ = scope.start(nap(1000))
            _ = scope.start(work("slow"))
            raise KeyError("inside")
    except KeyError:
        pass
    return "caught"


@app.workflow
async def cancels_itself() -> str:
    left = "after"
    async with wl.scope() as scope:
        scope.start(nap(1000))
        scope.cancel("enough")
        await wl.sleep(1)
        left = "not"
    return f"{left} {scope.timed_out}"


@app.workflow
async def swallows() -> str:
    while True:
        try:
            await wl.sleep(100)
        except wl.Cancelled:
            return "said goodbye"


def script() -> wl.Script:
    return wl.Script().on(work, "worked").on(undo, "undone")


@pytest.mark.parametrize(("seconds", "result", "took"), [(5, "in time", 5), (50, "too late", 10)])
def test_a_scope_with_a_timeout(seconds: int, result: str, took: int) -> None:
    with testing.world(app, now=START) as world:
        assert world.run(limited(seconds)) == result
        assert world.now - START == timedelta(seconds=took)
        assert not world.machine.work.open
        world.prove()


def test_nested_timeouts_belong_to_their_scope() -> None:
    with testing.world(app) as world:
        assert world.run(nested()) == ["True False", "reached", "True True"]
        world.prove()


def test_a_cancelled_run_compensates_behind_a_shield() -> None:
    with testing.world(app, script(), now=START) as world:
        run = world.start(compensates("o1"), id="o1")
        world.advance(50)
        run.cancel("the customer called")
        world.crash()
        with pytest.raises(wl.RunCancelled, match="the customer called"):
            run.result()
        assert world.now - START == timedelta(seconds=55)
        asked = [entry.payload for entry in world.journal() if entry.kind.name == "EFFECT_REQUESTED"]
        assert b"o1: the customer called" in asked[1]
        world.prove()


def test_a_second_cancellation_waits_for_the_shield_too() -> None:
    with testing.world(app, script()) as world:
        run = world.start(compensates("o1"), id="o1")
        run.cancel("first")
        run.cancel("second")
        assert run.status is RunStatus.RUNNING
        with pytest.raises(wl.RunCancelled, match=r"first|second"):
            run.result()
        assert [entry.kind.name for entry in world.journal()].count("EFFECT_REQUESTED") == 2


def test_a_shield_holds_a_cancellation_back_until_it_ends() -> None:
    with testing.world(app, now=START) as world:
        run = world.start(shielded(), id="s")
        world.advance(10)
        run.cancel("now")
        world.advance(39)
        assert not run.done
        with pytest.raises(wl.RunCancelled, match="now"):
            run.result()
        assert world.now - START == timedelta(seconds=50)


def test_a_scope_waits_for_what_it_started() -> None:
    with testing.world(app, now=START) as world:
        assert world.run(joins()) == [3, 1, 2]
        assert world.now - START == timedelta(seconds=3)


def test_a_scope_that_fails_cancels_what_it_started() -> None:
    with testing.world(app, wl.Script().on(work, wl.Script.never())) as world:
        assert world.run(fails_inside(), id="f") == "caught"
        assert world.attach("f/0").status is RunStatus.CANCELLED
        assert not world.machine.work.open
        world.prove()


def test_a_scope_can_cancel_itself() -> None:
    with testing.world(app) as world:
        assert world.run(cancels_itself(), id="c") == "after False"
        assert world.attach("c/0").status is RunStatus.CANCELLED


def test_a_run_may_end_well_although_it_was_cancelled() -> None:
    with testing.world(app) as world:
        run = world.start(swallows())
        run.cancel("please")
        assert run.result() == "said goodbye"


def test_cancelling_what_has_ended_or_never_was() -> None:
    with testing.world(app) as world:
        run = world.start(nap(1), id="n")
        assert run.result() == 1
        before = world.head.state
        run.cancel("late")
        assert world.head.state == before
        with pytest.raises(wl.NotFound, match="no run 'x'"):
            testing.TestRun(world, None, "x").cancel("who?")


def test_scopes_survive_crashes_everywhere() -> None:
    def scenario(world: testing.TestWorld) -> object:
        run = world.start(compensates("o1"), id="o1")
        world.advance(50)
        run.cancel("the customer called")
        world.advance(100)
        return world.run(nested()), world.run(joins()), run.status

    assert testing.crash_everywhere(scenario, app, script()) > 30
