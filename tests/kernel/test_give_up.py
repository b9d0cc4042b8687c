"""Cancelling a timer by hand: what becomes of whatever waited for it, and that it replays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import worldline as wl
from worldline.codec import structs
from worldline.kernel import control_commands, schedules, user_values
from worldline.kernel.authoring import schedule_spec
from worldline.kernel.authoring.calls import Call
from worldline.kernel.event_dispatch import Answer
from worldline.kernel.machine import RunFinished
from worldline.kernel.rows.row_records import JournaledFailure
from worldline.model import ids, inbox, journal, payload, step_records
from worldline.model.journal import Kind
from worldline.model.work import WorkKind
from worldline.testing.life import Life

HOME = ids.Address(ids.UniverseId(b"u" * 16), ids.WorldId(b"w" * 16))
SECOND = 1_000_000

app = wl.Program("timers")


@dataclass(frozen=True)
class Go:
    word: str = ""


@dataclass(frozen=True)
class Late:
    pass


@app.reducer()
@dataclass
class Seen:
    late: int = 0

    @wl.on
    def on_late(self, event: Late) -> None:
        self.late += 1


@app.effect
async def outside() -> str:
    return ""


@app.workflow
async def sleeps() -> str:
    try:
        await wl.sleep(60)
    except wl.EffectFailed as error:
        return f"{error.code}: {error}"
    return "slept"


@app.workflow
async def waits() -> str:
    try:
        return (await wl.wait(Go, timeout=60)).word
    except TimeoutError:
        return "late"


@app.workflow
async def scoped() -> str:
    async with wl.scope(timeout=60) as scope:
        found = await wl.wait(Go)
        return found.word
    return f"timed out: {scope.timed_out}"


@app.workflow
async def reminds() -> str:
    wl.after(60, Late())
    return (await wl.wait(Go)).word


@app.workflow
async def acts() -> str:
    return await outside()


def control(life: Life, command: str, wanted: object) -> step_records.Stepped:
    data = structs.encode(wanted)
    return life.step(inbox.Control(command, payload.inline(data), "asked"), data, time_us=0)


def start(life: Life, call: Call[Any]) -> None:
    control(
        life, control_commands.RUN, control_commands.StartRun("r", call.target.name, call.pack(), b"seed", named=True)
    )


def intent(life: Life) -> ids.IntentId:
    [found] = life.machine.work.open
    return found


def give_up(life: Life, of: bytes) -> Answer:
    stepped = control(life, control_commands.GIVE_UP, control_commands.GiveUp(of, "by hand"))
    [answered] = [draft for draft in stepped.drafts if draft.kind is Kind.ANSWERED]
    return structs.decode(Answer, answered.payload)


def send(life: Life, event: object) -> None:
    data = user_values.dump(event)
    life.step(inbox.InboxEvent(user_values.schema_name(type(event)), payload.inline(data)), data, time_us=0)


def result(life: Life) -> Any:
    ended = [structs.decode(RunFinished, entry.payload) for entry in life.entries if entry.kind is Kind.RUN_FINISHED]
    return user_values.load(Any, ended[0].data) if ended else None


def cancelled(life: Life) -> list[journal.JournalEntry]:
    return [entry for entry in life.entries if entry.kind is Kind.TIMER_CANCELLED]


def test_a_run_that_sleeps_is_told() -> None:
    life = Life(app, HOME)
    start(life, sleeps())
    assert give_up(life, intent(life)).ok
    assert result(life) == "cancelled: sleep: by hand"
    assert life.machine.work.open == {}
    life.restore()


@pytest.mark.parametrize("call", [waits(), scoped()], ids=["wait", "scope"])
def test_a_limit_is_lifted(call: Call[Any]) -> None:
    life = Life(app, HOME)
    start(life, call)
    before = life.machine.state
    assert give_up(life, intent(life)).ok
    assert life.machine.state != before, "it is part of the state that there is no limit any more"
    assert (life.machine.work.open, result(life)) == ({}, None)
    life.restore()
    assert life.machine.work.open == {}, "and it does not come back"
    send(life, Go("went"))
    assert result(life) == "went"


def test_an_event_to_come_does_not_come() -> None:
    life = Life(app, HOME)
    start(life, reminds())
    assert give_up(life, intent(life)).ok
    assert life.machine.work.open == {}
    send(life, Go("done"))
    assert result(life) == "done"
    assert len(cancelled(life)) == 1


def test_the_timer_of_a_schedule_takes_the_schedule_with_it() -> None:
    life = Life(app, HOME)
    spec = schedule_spec.spec_of(Late(), every=60, cron=None, tz=None)
    control(life, control_commands.SCHEDULE, schedules.ScheduleChange("daily", spec))
    assert give_up(life, intent(life)).ok
    assert (life.machine.schedules, life.machine.work.open) == ({}, {})
    life.restore()


def test_what_is_not_a_timer_is_not_found() -> None:
    life = Life(app, HOME)
    start(life, acts())
    assert life.machine.work.open[intent(life)].kind is WorkKind.EFFECT
    for of in (intent(life), bytes(16)):
        answer = give_up(life, of)
        assert not answer.ok
        assert structs.decode(JournaledFailure, answer.data).code == "not_found"
    assert len(life.machine.work.open) == 1
