"""A store's clock that was ahead and is right again: logical time stays where it got to, due times do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import worldline as wl
from worldline.codec import structs
from worldline.kernel import control_commands, schedules, state_rows, user_values
from worldline.kernel.authoring import schedule_spec
from worldline.model import inbox, payload, step_records
from worldline.model.journal import Kind
from worldline.testing import stage
from worldline.testing.life import Life

SECOND = 1_000_000
NOW_US = 1_700_000_000 * SECOND
HOUR_US = 3_600 * SECOND

app = wl.Program("clock")


@dataclass(frozen=True)
class Tick:
    name: str


@dataclass(frozen=True)
class Later:
    seconds: float


@app.reducer()
@dataclass
class Bell:
    ticks: int = 0

    @wl.on
    def tick(self, event: Tick) -> None:
        self.ticks += 1

    @wl.on
    def later(self, event: Later) -> None:
        wl.after(event.seconds, Tick("later"))


@app.effect(total_timeout=30)
async def outside(text: str) -> str:
    return text


@app.workflow
async def nap(seconds: float) -> str:
    await wl.sleep(seconds)
    return wl.now().isoformat()


@app.workflow
async def call() -> str:
    return await outside("x")


@app.workflow
async def in_scope() -> str:
    async with wl.scope(timeout=5):
        await outside("x")
    return "x"


@app.workflow
async def until(seconds: float) -> None:
    await wl.sleep_until(wl.now().fromtimestamp(seconds, wl.now().tzinfo))


def ahead() -> Life:
    """A world that took a step when the clock was ahead by an hour."""
    life = Life(app, stage.address(1))
    send(life, Tick("a"), NOW_US)
    send(life, Tick("b"), NOW_US + HOUR_US)
    return life


def send(life: Life, event: object, time_us: int) -> step_records.Stepped:
    data = user_values.dump(event)
    return life.step(inbox.InboxEvent(user_values.schema_name(type(event)), life.carry(data)), data, time_us=time_us)


def command(life: Life, name: str, wanted: object, time_us: int) -> step_records.Stepped:
    data = structs.encode(wanted)
    return life.step(inbox.Control(name, payload.inline(data), correlation="c"), data, time_us=time_us)


def start(life: Life, wanted: wl.Call[Any], time_us: int) -> list[step_records.WorkRequest]:
    wanted.awaited = True
    run = control_commands.StartRun("r", wanted.target.name, wanted.pack(), b"s" * 16, named=True)
    return command(life, control_commands.RUN, run, time_us).wanted


def fire(life: Life, timer: step_records.WorkRequest, time_us: int) -> step_records.Stepped:
    return life.step(inbox.TimerFired(timer.intent, timer.due_us, timer.correlation), b"", time_us=time_us)


def test_what_is_due_is_counted_from_the_stores_time() -> None:
    after_us = NOW_US + 2 * SECOND
    for wanted, due_us, deadline_us in (
        (nap(1), SECOND, 0),
        (call(), 0, 30 * SECOND),
        (until((after_us + 7 * SECOND) / SECOND), 7 * SECOND, 0),
    ):
        [asked] = start(ahead(), wanted, after_us)
        assert asked.due_us == after_us + due_us
        assert asked.deadline_us == (after_us + deadline_us if deadline_us else 0)
    limits = start(ahead(), in_scope(), after_us)
    assert sorted(each.due_us - after_us for each in limits) == [0, 5 * SECOND]
    [later] = send(ahead(), Later(3), after_us).wanted
    assert later.due_us == after_us + 3 * SECOND


def test_logical_time_never_decreases() -> None:
    life = ahead()
    [timer] = start(life, nap(1), NOW_US + 2 * SECOND)
    fire(life, timer, NOW_US + 3 * SECOND)
    times = [entry.time_us for entry in life.entries]
    assert times == sorted(times)
    assert times[-1] == NOW_US + HOUR_US
    assert life.machine.runs["r"].record.data == user_values.dump("2023-11-14T23:13:20+00:00")


def test_a_step_says_how_far_the_clock_is_behind_and_only_then() -> None:
    life = ahead()
    send(life, Tick("c"), NOW_US + SECOND)
    send(life, Tick("d"), NOW_US + HOUR_US)
    said = [(entry.step, user_values.load(int, entry.payload)) for entry in life.entries if entry.kind is Kind.CLOCK]
    assert said == [(3, HOUR_US - SECOND)]


def test_a_replay_has_the_same_due_times() -> None:
    life = ahead()
    start(life, nap(1), NOW_US + 2 * SECOND)
    before = state_rows.save(life.machine)
    life.restore()
    assert state_rows.save(life.machine) == before
    [pending] = life.machine.work.open.values()
    assert pending.due_us == NOW_US + 3 * SECOND
    fire(life, life.machine.work.wanted_again(pending, life.at), NOW_US + 3 * SECOND)
    assert life.prove() == 4


def test_bytes_that_no_world_can_take_say_nothing_of_the_clock() -> None:
    life = ahead()
    stepped = life.step(None, b"x", time_us=NOW_US, error="not decodable")
    assert [draft.kind for draft in stepped.drafts] == [Kind.UNDECODABLE_INPUT]
    life.restore()


# --- Schedules -----------------------------------------------------------------------------------------------------


def scheduled(life: Life, time_us: int, **when: Any) -> step_records.WorkRequest:
    spec = schedule_spec.spec_of(Tick("s"), every=when.get("every"), cron=when.get("cron"), tz=None)
    [timer] = command(life, control_commands.SCHEDULE, schedules.ScheduleChange("s", spec), time_us).wanted
    return timer


def test_a_schedule_made_or_fired_while_the_clock_was_ahead_is_on_time_again() -> None:
    for made_us in (NOW_US, NOW_US + HOUR_US):
        life = Life(app, stage.address(1))
        timer = scheduled(life, made_us, every=60)
        [timer] = fire(life, timer, NOW_US + HOUR_US + 60 * SECOND).wanted
        assert timer.due_us == NOW_US + HOUR_US + 120 * SECOND
        stepped = send(life, Tick("back"), NOW_US + 61 * SECOND)
        assert [each.due_us for each in stepped.cancelled] == [timer.due_us]
        [timer] = stepped.wanted
        assert timer.due_us == NOW_US + 120 * SECOND
        [timer] = fire(life, timer, NOW_US + 120 * SECOND).wanted
        assert timer.due_us == NOW_US + 180 * SECOND, "and it goes on"
        assert life.prove() == 4


def test_a_clock_set_back_a_little_does_not_fire_one_time_twice() -> None:
    life = Life(app, stage.address(1))
    timer = scheduled(life, NOW_US, cron="* * * * *")
    minute_us = timer.due_us
    send(life, Tick("on the minute"), minute_us)
    [following] = fire(life, timer, minute_us - SECOND).wanted
    assert following.due_us == minute_us + 60 * SECOND
    assert not send(life, Tick("again"), minute_us - SECOND).wanted, "what is armed stays"


def test_a_clock_set_back_far_fires_the_times_between_again() -> None:
    life = Life(app, stage.address(1))
    timer = scheduled(life, NOW_US, cron="* * * * *")
    send(life, Tick("ahead"), NOW_US + HOUR_US)
    [timer] = fire(life, timer, NOW_US + HOUR_US).wanted
    send(life, Tick("back"), NOW_US)
    for _ in range(3):
        [pending] = life.machine.work.open.values()
        assert 0 < pending.due_us - NOW_US <= 240 * SECOND
        fire(life, life.machine.work.wanted_again(pending, life.at), pending.due_us)
