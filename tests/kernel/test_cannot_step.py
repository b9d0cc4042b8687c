# ruff: noqa: BLE001 - catching everything is what some of these programs are about
"""What a process lacks is no part of a world's history: the step is dropped with `CannotStep`, wherever it was met, and
another machine, or the same code a little later, makes the same step as if nothing had been.
"""

from __future__ import annotations

import dataclasses
import sys
import zoneinfo
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import worldline as wl
from worldline import testing
from worldline.base import errors
from worldline.codec import structs
from worldline.host.feature_list import PARTS
from worldline.kernel import context, control_commands, schedules, state_rows, user_values
from worldline.kernel import step as kernel_step
from worldline.kernel.authoring import schedule_spec
from worldline.kernel.machine import Machine
from worldline.model import ids, inbox, payload, step_records

HOME = ids.Address(ids.UniverseId(b"u" * 16), ids.WorldId(b"w" * 16))
app = wl.Program("lacking")
lacking = [False]


@pytest.fixture(autouse=True)
def enough() -> Iterator[None]:
    lacking[0] = False
    yield
    lacking[0] = False


def allocate() -> bool:
    if lacking[0]:
        raise MemoryError
    return False


@dataclasses.dataclass(frozen=True)
class Fold:
    n: int


@dataclasses.dataclass(frozen=True)
class Ask(wl.Request[int]):
    n: int


@dataclasses.dataclass(frozen=True)
class Tick:
    n: int


class Model:
    """Needs memory to be stored."""

    def model_dump(self, *, mode: str) -> Any:
        allocate()
        return mode


@app.reducer()
@dataclasses.dataclass
class Counter:
    n: int = 0

    @wl.on
    def fold(self, event: Fold) -> None:
        self.n += event.n
        allocate()

    @wl.on
    def ask(self, event: Ask) -> int:
        self.n += event.n
        allocate()
        return self.n


@app.workflow
async def plain() -> None:
    allocate()
    await wl.sleep(1)


@app.workflow
async def parent() -> None:
    await plain()


@app.workflow
async def choosy() -> None:
    await wl.wait(Tick, where=lambda _: allocate())


@app.workflow
async def answers() -> Any:
    return Model()


@app.workflow
async def emits() -> None:
    wl.emit(Fold(1))


@app.workflow
async def swallows() -> None:
    """The handler of its own event meets it, and the run would go on as if nothing had been."""
    try:
        wl.emit(Fold(1))
    except BaseException:
        await wl.sleep(1)


@app.workflow
async def swallows_in_a_value() -> None:
    try:
        wl.emit(Model())
    except BaseException:
        await wl.sleep(1)


def event(given: object, number: int) -> tuple[step_records.Input, step_records.StepContext]:
    data = user_values.dump(given)
    item = inbox.InboxEvent(user_values.schema_name(type(given)), payload.inline(data), correlation="e")
    return step_records.Input(item, data), step_records.StepContext(HOME, number, number)


def start(call: wl.Call[Any], number: int) -> tuple[step_records.Input, step_records.StepContext]:
    wanted = structs.encode(control_commands.StartRun("r", call.target.name, call.pack(), b"s" * 16, named=True))
    return step_records.Input(
        inbox.Control(control_commands.RUN, payload.inline(wanted), "c"), wanted
    ), step_records.StepContext(HOME, number, 1)


PLACES = {
    "handler": [event(Fold(1), 1)],
    "request": [event(Ask(1), 1)],
    "where": [start(choosy(), 1), event(Tick(1), 2)],
    **{flow.name: [start(flow(), 1)] for flow in (plain, parent, answers, emits, swallows, swallows_in_a_value)},
}


@pytest.mark.parametrize("place", PLACES)
def test_a_full_memory_is_no_failure_of_the_code(place: str) -> None:
    *before, last = PLACES[place]
    machine = Machine(app)
    for each in before:
        kernel_step.step(machine, *each, PARTS)
    parts = state_rows.save(machine)
    lacking[0] = True
    with pytest.raises(errors.CannotStep) as caught:
        kernel_step.step(machine, *last, PARTS)
    assert not caught.value.lasting
    lacking[0] = False
    never = state_rows.load(app, parts, HOME)
    again = state_rows.load(app, parts, HOME)
    drafts = kernel_step.step(again, *last, PARTS).drafts
    assert drafts == kernel_step.step(never, *last, PARTS).drafts
    assert not any(b"MemoryError" in draft.payload for draft in drafts)


def test_trying_a_program_is_abandoned_too() -> None:
    machine = Machine(app)
    kernel_step.step(machine, *start(plain(), 1), PARTS)
    machine.runs["r"].cool()
    lacking[0] = True
    with pytest.raises(errors.CannotStep):
        control_commands.misfits(machine, HOME)


zoned = wl.Program("zoned")


@dataclasses.dataclass(frozen=True)
class Put:
    zone: str


@zoned.reducer()
@dataclasses.dataclass
class Puts:
    n: int = 0

    @wl.on
    def put(self, event: Put) -> None:
        self.n += 1
        wl.schedule("s", Tick(1), cron="0 9 * * *", tz=event.zone)

    @wl.on
    def tick(self, event: Tick) -> None:
        self.n += event.n


@pytest.fixture
def no_zones(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Makes this process forget its time zones: the system's and those of tzdata."""

    def forget() -> None:
        zoneinfo.reset_tzpath(to=())
        monkeypatch.setitem(sys.modules, "tzdata", None)
        monkeypatch.setitem(sys.modules, "tzdata.zoneinfo", None)
        monkeypatch.setitem(sys.modules, "tzdata.zoneinfo.Europe", None)
        monkeypatch.setitem(sys.modules, "tzdata.zoneinfo.Etc", None)
        zoneinfo.ZoneInfo.clear_cache()

    yield forget
    zoneinfo.reset_tzpath()
    zoneinfo.ZoneInfo.clear_cache()


def test_zones_come_from_tzdata_where_the_system_has_none() -> None:
    zoneinfo.reset_tzpath(to=())
    zoneinfo.ZoneInfo.clear_cache()
    try:
        schedule_spec.spec_of(Tick(1), every=None, cron="0 9 * * *", tz="Europe/Lisbon")
    finally:
        zoneinfo.reset_tzpath()
        zoneinfo.ZoneInfo.clear_cache()


@pytest.mark.parametrize("zone", ["Europe/Nowhere", "../etc/passwd", "/etc/localtime", "a" * 500, "\x00"])
def test_an_unknown_zone_is_refused_where_it_is_declared(zone: str) -> None:
    with pytest.raises(errors.UnknownZone):
        schedule_spec.spec_of(Tick(1), every=None, cron="0 9 * * *", tz=zone)
    machine = Machine(zoned)
    assert "UnknownZone" in kernel_step.step(machine, *event(Put(zone), 1), PARTS).dead
    assert kernel_step.step(machine, *event(Tick(1), 2), PARTS).dead == ""


def test_a_step_that_needs_a_zone_this_process_lacks(no_zones: Callable[[], None]) -> None:
    machine = Machine(zoned)
    spec = schedule_spec.spec_of(Tick(1), every=None, cron="0 9 * * *", tz="Europe/Lisbon")
    command = structs.encode(schedules.ScheduleChange("s", spec))
    put = step_records.Input(inbox.Control(control_commands.SCHEDULE, payload.inline(command), "c"), command)
    [timer] = kernel_step.step(machine, put, step_records.StepContext(HOME, 1, 1), PARTS).wanted
    parts = state_rows.save(machine)
    fired = step_records.Input(inbox.TimerFired(timer.intent, timer.due_us), b"")
    no_zones()
    for held, given in [
        (machine, (fired, step_records.StepContext(HOME, 2, timer.due_us))),
        (Machine(zoned), (put, step_records.StepContext(HOME, 1, 1))),
        (Machine(zoned), event(Put("Europe/Lisbon"), 1)),
    ]:
        with pytest.raises(errors.CannotStep, match="Europe/Lisbon") as caught:
            kernel_step.step(held, *given, PARTS)
        assert caught.value.lasting
    # What needs no zone goes on here, and the schedule where there is one.
    other = state_rows.load(zoned, parts, HOME)
    assert kernel_step.step(other, *event(Tick(1), 2), PARTS).dead == ""


interrupting = wl.Program("interrupting")


@interrupting.workflow
async def interrupts() -> None:
    raise KeyboardInterrupt


def test_an_interrupt_ends_a_test_and_fails_a_run_in_a_host() -> None:
    with testing.world(interrupting) as world, pytest.raises(KeyboardInterrupt):
        world.run(interrupts())
    assert not context.interruptible.get()
    stepped = kernel_step.step(Machine(interrupting), *start(interrupts(), 1), PARTS)
    assert any(b"KeyboardInterrupt" in draft.payload for draft in stepped.drafts)
