"""How scopes and gathers end: cancelled runs are waited for, failures are heard at once, cancellations have a kind."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

import worldline as wl
from worldline import testing
from worldline.base import limits
from worldline.kernel import state_rows
from worldline.kernel.rows.row_records import RunStatus

START = datetime(2024, 1, 1, tzinfo=UTC)
app = wl.Program("scope-ends")


@dataclass(frozen=True)
class Said:
    text: str


@app.reducer()
@dataclass
class Order:
    said: list[str] = field(default_factory=list)

    @wl.on
    def say(self, event: Said) -> None:
        self.said.append(f"{event.text} at {(wl.now() - START).seconds}")


@app.effect(retry=wl.Retry(attempts=1))
async def work(name: str) -> str:
    return name


@app.workflow
async def nap(seconds: int) -> int:
    await wl.sleep(seconds)
    return seconds


@app.workflow
async def bad(seconds: int) -> int:
    await wl.sleep(seconds)
    raise ValueError(f"bad after {seconds}")


@app.workflow
async def tidies(name: str, seconds: int) -> str:
    """Puts things right when it is cancelled, without a shield: one cancellation must be all that it gets."""
    try:
        await wl.sleep(1000)
    except wl.Cancelled as cancelled:
        await wl.sleep(seconds)
        wl.emit(Said(f"{name} {cancelled.kind.name}"))
        raise
    return name


@app.workflow
async def parent_of(name: str, seconds: int) -> str:
    try:
        return await tidies(name, seconds)
    finally:
        wl.emit(Said(f"parent of {name}"))


@app.workflow
async def fails_to_tidy(seconds: int) -> None:
    try:
        await wl.sleep(1000)
    finally:
        await wl.sleep(seconds)
        raise ValueError("cannot tidy")


@app.workflow
async def body_fails(grace: int | None, seconds: int) -> str:
    try:
        async with wl.scope(grace=grace) as scope:
            scope.start(tidies("child", seconds))
            scope.start(work("never"))
            await wl.sleep(1)
            raise KeyError("inside")
    except KeyError:
        wl.emit(Said("left"))
    return "done"


@app.workflow
async def stays() -> None:
    with contextlib.suppress(KeyError):
        async with wl.scope(grace=10) as scope:
            scope.start(tidies("child", 60))
            await wl.sleep(1)
            raise KeyError("inside")
    await wl.sleep(1000)


@app.workflow
async def naps(seconds: int) -> int:
    return await nap(seconds)


@app.workflow
async def ends_at_once() -> str:
    async with wl.scope() as scope:
        scope.start(naps(1000))
        scope.start(naps(1000))
        await wl.sleep(1)
        scope.cancel("enough")
        await naps(1000)
    return "done"


@app.workflow
async def gather_fails(grace: int | None) -> str:
    try:
        await wl.gather(tidies("a", 3), bad(1), work("never"), tidies("b", 5), grace=grace)
    except wl.RunFailed as failed:
        wl.emit(Said(f"raised {failed}"))
    return "done"


@app.workflow
async def times_out() -> bool:
    async with wl.scope(timeout=2) as scope:
        await wl.gather(tidies("a", 3), work("never"), return_exceptions=True)
    wl.emit(Said("left"))
    return scope.timed_out


@app.workflow
async def sibling_fails() -> str:
    async with wl.scope() as scope:
        scope.start(tidies("a", 3))
        scope.start(bad(5))
        try:
            await wl.sleep(1000)
        except wl.Cancelled as cancelled:
            wl.emit(Said(f"body {cancelled.kind.name} {cancelled.reason}"))
            raise
    return "not reached"


@app.workflow
async def swallows_it() -> str:
    async with wl.scope() as scope:
        scope.start(bad(5))
        try:
            await wl.sleep(1000)
        except wl.Cancelled:
            await wl.sleep(7)
            wl.emit(Said("end of the block"))
    return "not reached"


@app.workflow
async def several_fail() -> list[str]:
    try:
        async with wl.scope() as scope:
            scope.start(fails_to_tidy(1))
            scope.start(bad(5))
            scope.start(fails_to_tidy(2))
            await wl.sleep(1000)
    except wl.RunFailed as failed:
        return [str(failed), *failed.__notes__]
    return []


@app.workflow
async def fails_beside() -> list[str]:
    try:
        async with wl.scope() as scope:
            scope.start(fails_to_tidy(1))
            await wl.sleep(1)
            raise KeyError("mine")
    except KeyError as error:
        return error.__notes__


@app.workflow
async def catches_it() -> str:
    async with wl.scope() as scope:
        started, other = scope.start(bad(5)), scope.start(nap(20))
        try:
            await started
        except wl.RunFailed:
            await wl.sleep(1)
        result = await other
    return f"slept {result}"


@app.workflow
async def gives_up() -> str:
    async with wl.scope() as scope:
        started = scope.start(tidies("a", 3))
        effect = scope.start(work("never"))
        await wl.sleep(1)
        started.cancel("not wanted")
        effect.cancel("not wanted")
    wl.emit(Said("left"))
    return "done"


@app.workflow
async def gives_up_waiting() -> str:
    async with wl.scope() as outer:
        started = outer.start(tidies("a", 3))
        async with wl.scope(timeout=1) as inner:
            await started
        wl.emit(Said(f"gave up {inner.timed_out}"))
        await wl.sleep(1)
    wl.emit(Said("left"))
    return "done"


@app.workflow
async def shields_its_body() -> str:
    async with wl.scope() as scope:
        scope.start(bad(1))
        async with wl.scope(shield=True):
            await wl.sleep(10)
            wl.emit(Said("shielded"))
        await wl.sleep(10)
    return "not reached"


@app.workflow
async def cancels_with_the_word(timeout: int) -> list[Any]:
    said: list[Any] = []
    async with wl.scope(timeout=timeout) as scope:
        scope.cancel("timeout")
        try:
            await wl.sleep(1)
        except wl.Cancelled as cancelled:
            said += [cancelled.kind.name, cancelled.reason]
            raise
    return [*said, scope.timed_out]


@app.workflow
async def starts_too_late() -> str:
    async with wl.scope() as scope:
        pass
    try:
        scope.start(nap(1))
    except wl.BadInput as error:
        return str(error)
    return "started"


@app.workflow
async def asks_for_kinds() -> list[str]:
    said = []
    for call in (tidies("x", 0), parent_of("y", 0)):
        async with wl.scope() as scope:
            started = scope.start(call)
            await wl.sleep(1)
            started.cancel("enough")
            try:
                await started
            except wl.RunCancelled as cancelled:
                said.append(f"{cancelled.kind.name} {cancelled}")
    return said


@app.workflow
async def starts_over(times: int) -> str:
    if times:
        async with wl.scope() as scope:
            scope.start(tidies(f"child {times}", 3))
            await wl.sleep(1)
            wl.continue_as_new(starts_over(times - 1))
    wl.emit(Said("started over"))
    return "done"


def script() -> wl.Script:
    return wl.Script().on(work, wl.Script.never())


def lived(call: Any, *, id: str = "r") -> tuple[Any, list[str]]:
    """What a run returns or raises, and what was said until long after its end."""
    with testing.world(app, script(), now=START) as world:
        run = world.start(call, id=id)
        try:
            result: Any = run.result()
        except wl.RunFailed as error:
            result = error
        world.advance(3000)
        assert not world.machine.work.open
        world.prove()
        return result, world.state(Order).said


def timers(world: testing.TestWorld, kind: str) -> int:
    return sum(entry.kind.name == kind and b"grace" in entry.payload for entry in world.journal())


@pytest.mark.parametrize(
    ("grace", "seconds", "said"),
    [
        (10, 5, ["child FAILURE at 6", "left at 6"]),
        (10, 0, ["child FAILURE at 1", "left at 1"]),
        (10, 60, ["left at 11", "child FAILURE at 61"]),
        (2, 5, ["left at 3", "child FAILURE at 6"]),
        (None, 60, ["child FAILURE at 61", "left at 61"]),
        (0, 5, ["left at 1", "child FAILURE at 6"]),
    ],
)
def test_a_failed_scope_waits_for_its_cancelled_runs_within_grace(
    grace: int | None, seconds: int, said: list[str]
) -> None:
    assert lived(body_fails(grace, seconds)) == ("done", said)


@pytest.mark.parametrize(
    ("call", "was_set", "was_cancelled"),
    [(ends_at_once(), 0, 0), (body_fails(10, 5), 1, 1), (body_fails(10, 60), 1, 0)],
)
def test_a_grace_period_is_a_timer_in_the_journal_if_it_is_needed(call: Any, was_set: int, was_cancelled: int) -> None:
    with testing.world(app, script(), now=START) as world:
        world.run(call, id="r")
        world.advance(100)
        assert timers(world, "TIMER_SET") == was_set
        assert timers(world, "TIMER_CANCELLED") == was_cancelled
        assert world.attach("r/0").status is RunStatus.CANCELLED


def test_what_has_not_ended_within_the_grace_period_is_waited_for_no_more() -> None:
    """Its operation has an outcome, so nothing of it comes to the run any more."""
    with testing.world(app, script(), now=START) as world:
        world.start(stays(), id="r")
        world.advance(12)
        child = world.machine.runs["r"].record.ops[0]
        assert child.outcome is not None
        assert b"it did not end within the grace period" in child.outcome.data
        assert world.attach("r/0").status is RunStatus.RUNNING
        world.advance(60)
        assert world.attach("r/0").status is RunStatus.CANCELLED
        world.prove()


def test_a_run_that_may_ask_for_nothing_more_gives_no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RUN_OPERATIONS_MAX", 3)
    assert lived(body_fails(10, 5)) == ("done", ["left at 1", "child FAILURE at 6"])


def test_a_failed_gather_waits_for_its_cancelled_runs() -> None:
    assert lived(gather_fails(10))[1] == ["a FAILURE at 4", "b FAILURE at 6", "raised ValueError: bad after 1 at 6"]
    assert lived(gather_fails(4))[1] == ["a FAILURE at 4", "raised ValueError: bad after 1 at 5", "b FAILURE at 6"]
    assert lived(gather_fails(0))[1][0] == "raised ValueError: bad after 1 at 1"


def test_a_timeout_reaches_the_runs_as_one() -> None:
    assert lived(times_out()) == (True, ["a TIMEOUT at 5", "left at 5"])


def test_a_cancelled_run_ends_after_the_run_that_it_awaits() -> None:
    with testing.world(app, script(), now=START) as world:
        run = world.start(parent_of("child", 5), id="p")
        world.advance(2)
        run.cancel("enough")
        assert run.status is RunStatus.RUNNING
        run.cancel("a second time")
        with pytest.raises(wl.RunCancelled, match="enough") as caught:
            run.result()
        assert caught.value.kind is wl.CancelKind.USER
        assert world.state(Order).said == ["child PARENT at 7", "parent of child at 7"]
        world.prove()


def test_a_failure_is_heard_when_it_happens() -> None:
    failed, said = lived(sibling_fails())
    assert type(failed) is wl.RunFailed
    assert failed.code == "ValueError"
    assert "bad after 5" in str(failed)
    assert said == ["body FAILURE bad failed at 5", "a FAILURE at 8"]


def test_a_body_that_goes_on_does_not_lose_the_failure() -> None:
    failed, said = lived(swallows_it())
    assert "bad after 5" in str(failed)
    assert said == ["end of the block at 12"]


def test_the_first_failure_is_raised_and_the_others_are_notes() -> None:
    assert lived(several_fail())[0] == [
        "ValueError: bad after 5",
        "also failed in this scope: fails_to_tidy: ValueError: cannot tidy",
        "also failed in this scope: fails_to_tidy: ValueError: cannot tidy",
    ]
    assert lived(fails_beside())[0] == ["also failed in this scope: fails_to_tidy: ValueError: cannot tidy"]


def test_a_failure_that_was_caught_is_not_raised_again() -> None:
    assert lived(catches_it()) == ("slept 20", [])


def test_what_the_block_cancels_itself_is_no_failure_and_is_waited_for() -> None:
    assert lived(gives_up()) == ("done", ["a PARENT at 4", "left at 4"])
    assert lived(gives_up_waiting()) == ("done", ["gave up True at 1", "a TIMEOUT at 4", "left at 4"])


def test_a_shield_in_the_block_comes_first() -> None:
    failed, said = lived(shields_its_body())
    assert "bad after 1" in str(failed)
    assert said == ["shielded at 10"]


def test_a_run_that_is_cancelled_from_outside_is_a_failure_of_its_scope() -> None:
    with testing.world(app, script(), now=START) as world:
        run = world.start(sibling_fails(), id="r")
        world.advance(1)
        world.attach("r/0").cancel("by a person")
        with pytest.raises(wl.RunFailed, match="by a person"):
            run.result()
        assert world.state(Order).said == ["a USER at 4", "body FAILURE tidies failed at 4"]


@pytest.mark.parametrize("timeout", [5, 100])
def test_a_cancellation_for_the_reason_timeout_is_no_timeout(timeout: int) -> None:
    assert lived(cancels_with_the_word(timeout))[0] == ["USER", "timeout", False]


def test_nothing_is_started_in_a_scope_that_was_left() -> None:
    assert "after the end of the block" in lived(starts_too_late())[0]


def test_the_kind_is_told_to_who_waits_for_the_run() -> None:
    result, _ = lived(asks_for_kinds())
    assert result == ["PARENT enough", "PARENT enough"]
    assert wl.RunCancelled("of unknown kind", data={"kind": "other"}).kind is wl.CancelKind.USER


def test_a_run_that_starts_over_waits_too() -> None:
    assert lived(starts_over(2))[1] == ["child 2 PARENT at 4", "child 1 PARENT at 8", "started over at 8"]


def everything(world: testing.TestWorld) -> list[Any]:
    calls = [
        body_fails(10, 5),
        body_fails(2, 5),
        body_fails(None, 60),
        gather_fails(10),
        gather_fails(2),
        times_out(),
        sibling_fails(),
        swallows_it(),
        several_fail(),
        catches_it(),
        gives_up(),
        gives_up_waiting(),
        shields_its_body(),
        cancels_with_the_word(5),
        asks_for_kinds(),
        starts_over(1),
        parent_of("p", 4),
    ]
    runs = [world.start(call, id=f"r{number}") for number, call in enumerate(calls)]
    world.advance(3)
    for run in runs[::4]:
        run.cancel("enough")
    world.advance(3000)
    return [run.status.name for run in runs] + world.state(Order).said


@pytest.mark.parametrize("seed", range(4))
def test_dropping_coroutines_at_random_changes_nothing(seed: int) -> None:
    plain = testing.world(app, script(), drops=False, twice=False)
    with plain as warm, testing.world(app, script(), seed=seed) as dropped:
        assert everything(warm) == everything(dropped)
        assert warm.head == dropped.head
        assert state_rows.save(warm.machine) == state_rows.save(dropped.machine)


@pytest.mark.parametrize("call", [body_fails(3, 5), gather_fails(4), several_fail(), gives_up_waiting()])
def test_a_crash_at_every_entry_changes_nothing(call: Any) -> None:
    def scenario(world: testing.TestWorld) -> object:
        result = world.run(call, id="r")
        world.advance(100)
        return result, world.state(Order).said

    assert testing.crash_everywhere(scenario, app, script()) > 10


MANY = 3_000


@app.workflow
async def many(fails: bool) -> int:
    async with wl.scope() as scope:
        for number in range(MANY):
            scope.start(bad(5) if fails and number == MANY // 2 else nap(10))
    return MANY


@pytest.mark.parametrize("fails", [False, True])
def test_a_scope_with_thousands_of_runs(fails: bool) -> None:
    """More than a step takes: those that were never started are given up, the others are cancelled and waited for."""
    with testing.world(app, twice=False, drops=False, now=START) as world:
        run = world.start(many(fails), id="m")
        if fails:
            with pytest.raises(wl.RunFailed, match="bad after 5"):
                run.result()
        else:
            assert run.result() == MANY
        assert (world.now - START).seconds == (5 if fails else 10)
        assert not world.machine.work.open
        assert len(world.machine.live_runs()) == 0
