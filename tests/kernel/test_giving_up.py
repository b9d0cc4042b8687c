"""Giving up more at once than a step has room for: what is left is closed by the steps that follow."""

from __future__ import annotations

import pytest

import worldline as wl
from worldline import testing
from worldline.base import limits
from worldline.kernel import control_commands, replay, state_rows, user_values
from worldline.model import ids, inbox, payload
from worldline.model.inbox import ReceiptStatus
from worldline.model.journal import Kind

MANY = 150
ENTRIES = 40

app = wl.Program("many")


@app.effect
async def slow(number: int) -> int:
    return number


@app.effect
async def fails() -> int:
    return 0


@app.workflow
async def nap(number: int) -> int:
    await wl.sleep(3600 + number)
    return number


@app.workflow
async def effects() -> str:
    await wl.gather(*(slow(number) for number in range(MANY)))
    return "done"


@app.workflow
async def timers() -> str:
    await wl.gather(*(nap(number) for number in range(MANY)))
    return "done"


@app.workflow
async def one_fails() -> str:
    try:
        await wl.gather(*(slow(number) for number in range(MANY)), fails())
    except wl.EffectFailed as error:
        return error.code
    return "done"


@app.workflow
async def starts_over(again: bool) -> str:
    for number in range(MANY if again else 0):
        wl.start(slow(number))
    await wl.sleep(1)
    if again:
        wl.continue_as_new(starts_over(again=False))
    return "done"


def script() -> wl.Script:
    return wl.Script().on(slow, wl.Script.never()).on(fails, wl.Script.later(5, wl.Fatal("no", code="no")))


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STEP_ENTRIES_MAX", ENTRIES)


def steps(world: testing.TestWorld) -> list[int]:
    """How many entries each step has."""
    return [len(entries) for entries in replay.steps(world.journal())]


@pytest.mark.parametrize("call", [effects(), timers()], ids=["effects", "timers"])
def test_a_cancelled_run(call: wl.Call[str]) -> None:
    with testing.world(app, script()) as world:
        run = world.start(call, id="r")
        assert len(world.machine.work.open) == MANY
        run.cancel("enough")
        assert run.done
        assert (len(world.machine.work.open), len(world.machine.work.closing)) == (0, 0)
        kinds = [entry.kind for entry in world.journal()]
        assert kinds.count(Kind.EFFECT_CANCELLED) + kinds.count(Kind.TIMER_CANCELLED) == MANY
        assert max(steps(world)) <= ENTRIES + 5, "what cannot wait comes on top"
        world.prove()


def test_a_failure_gives_up_the_others() -> None:
    with testing.world(app, script()) as world:
        assert world.run(one_fails()) == "no"
        world.advance(0)
        assert (len(world.machine.work.open), len(world.machine.work.closing)) == (0, 0)
        world.prove()


def test_a_run_that_starts_over() -> None:
    with testing.world(app, script(), strict=False) as world:
        assert world.run(starts_over(again=True)) == "done"
        assert (len(world.machine.work.open), len(world.machine.work.closing)) == (0, 0)
        world.prove()


def cancelled_halfway(world: testing.TestWorld) -> list[ids.IntentId]:
    """A world right behind the step that gave everything up, and what has not been closed yet."""
    world.start(effects(), id="r")
    data = user_values.dump(["r", "enough"])
    world._stage.step(world._actor, inbox.Control(control_commands.CANCEL, payload.inline(data)), data)
    assert world.machine.unfinished
    return [world.machine.work.wanted_again(each.pending, world.address).intent for each in world.machine.work.closing]


def test_answers_to_what_is_being_closed_come_too_late() -> None:
    with testing.world(app, script()) as world:
        left = cancelled_halfway(world)
        assert len(left) > MANY // 2
        runs = [run.record for run in world.machine.runs.values()]
        receipt = inbox.EffectReceipt(left[-1], ReceiptStatus.OK, payload.inline(user_values.dump(1)), 1)
        stepped = world._stage.step(world._actor, receipt, user_values.dump(1))
        assert stepped.drafts[1].kind is Kind.LATE_ANSWER
        assert stepped.cancelled, "each step closes as much as it has room for"
        assert [run.record for run in world.machine.runs.values()] == runs
        world.advance(0)
        assert len(world.machine.work.closing) == 0
        world.prove()


def test_what_is_left_to_close_survives() -> None:
    with testing.world(app, script()) as world:
        left = cancelled_halfway(world)
        saved = state_rows.save(world.machine)
        loaded = state_rows.load(app, saved, world.address)
        assert [loaded.work.wanted_again(each.pending, world.address).intent for each in loaded.work.closing] == left
        loaded.close()
        world.crash()
        assert state_rows.save(world.machine) == saved
        world.advance(0)
        assert len(world.machine.work.closing) == 0
        world.prove()
