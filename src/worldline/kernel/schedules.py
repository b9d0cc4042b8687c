"""Schedules: things that happen again and again, compiled to one-shot timers.

A schedule has at any time exactly one open timer. When that fires, the next one is set in the same step, and only then
is the event raised or the workflow started, so whatever those do to the schedule (replace it, remove it) they do to the
timer to come.

When the next firing is due depends on the store's time of the step and on nothing else, but that one time does not fire
twice in a row. A store's clock that is set back shows times again, and they fire again. Firings that were missed while
nobody ran the world are not made up for one by one: the overdue timer fires once, and the next is the first one still
ahead. `every` keeps its phase, counted from when the schedule was made. Cron times are UTC unless a zone is named. In a
zone, a time that the clock skips happens right after the gap, and one that it shows twice happens once; its rules are
the system's, or tzdata's where the system has none, so a world that names one replays where the same rules are
installed. A zone that is unknown is refused where a schedule is declared. A process that lacks the zone of a schedule
it should fire cannot make that step (`CannotStep`), and leaves it to others.

Same id and same specification: nothing happens, and the phase stays. Same id and another one: it is replaced.
"""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import cronsim
import msgspec

from worldline.base import errors, limits
from worldline.codec import digest, structs
from worldline.kernel import values
from worldline.kernel.authoring import calls
from worldline.model import ids

if TYPE_CHECKING:
    from worldline.kernel.state import Machine

TIMER = "schedule:"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FORM = "minute hour day month weekday, such as '0 9 * * 1-5'"
_REPEATS_MAX = 1_000  # times that a clock set back shows again


class Spec(msgspec.Struct, frozen=True, array_like=True):
    """When something happens, and what: all that two schedules must share to be the same one."""

    every_us: int  # 0: by `cron`
    cron: str
    zone: str  # empty: UTC
    starts: bool  # a workflow; else an event is raised
    name: str  # the workflow, or the event's schema
    data: bytes  # its arguments, or the event


class Schedule(msgspec.Struct, array_like=True):
    """A schedule as it is kept in snapshots. (step, ordinal) names its open timer; 0 while that is held back."""

    id: str
    spec: Spec
    since_us: int
    due_us: int = 0
    fired: int = 0
    step: int = 0
    ordinal: int = 0


class Put(msgspec.Struct, frozen=True, array_like=True):
    """The payload of the control input that makes a schedule; without a spec, that removes it."""

    id: str
    spec: Spec | None


class Scheduled(msgspec.Struct, frozen=True):
    """A schedule, for people."""

    id: str
    what: str
    every: timedelta | None
    cron: str | None
    tz: str
    next: datetime
    fired: int


def spec_of(what: object, *, every: calls.Seconds | None, cron: str | None, tz: str | None) -> Spec:
    """Check what a user asks for. Everything that is wrong with it is one clear error."""
    if (every is None) == (cron is None):
        raise errors.BadInput("a schedule needs every= or cron=, and not both")
    if tz is not None and cron is None:
        raise errors.BadInput("tz= belongs to cron=; every= counts seconds, which are the same everywhere")
    every_us = 0 if every is None else calls.to_us(every, "every=")
    if every is not None and every_us < limits.SCHEDULE_EVERY_US_MIN:
        raise errors.BadInput(f"every= must be at least {limits.SCHEDULE_EVERY_US_MIN / 1_000_000:g} s, not {every!r}")
    starts, name, data = _target(what)
    cron = "" if cron is None else " ".join(values.text(cron, "cron=").split())
    spec = Spec(every_us, cron, "" if tz is None else values.text(tz, "tz="), starts, name, data)
    next_us(spec, since_us=0, after_us=0)
    return spec


def next_us(spec: Spec, *, since_us: int, after_us: int) -> int:
    """The first time after one, in microseconds. `BadInput` for an expression that has none."""
    if spec.every_us:
        periods = (after_us - since_us) // spec.every_us + 1  # also before it was made, if the clock is set back
        return since_us + periods * spec.every_us
    after = (_EPOCH + timedelta(microseconds=after_us)).astimezone(_zone(spec.zone))
    try:
        for found in itertools.islice(cronsim.CronSim(spec.cron, after), _REPEATS_MAX):
            due_us = (found.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
            if due_us > after_us:  # a clock that was set back shows earlier times again
                return due_us
    except cronsim.CronSimError as error:
        raise errors.BadInput(f"cron={spec.cron!r}: {str(error).lower()}; it is {_FORM}") from error
    raise errors.BadInput(f"cron={spec.cron!r} never happens; it is {_FORM}")


# --- What a step does to schedules ---------------------------------------------------------------------------------


def check(machine: Machine, schedule_id: str, spec: Spec, *, adding: int = 0) -> None:
    """Refuse what this world cannot schedule, while whoever asks can still be told. `adding`: others on their way."""
    ids.check_name(schedule_id, "a schedule's id")
    if spec.starts:
        flow = machine.program.workflows.get(spec.name)
        if flow is None:
            raise errors.BadInput(f"workflow {spec.name} is not one of program {machine.program.name!r}")
        flow.signature.unpack(spec.data)
    _next_in_step(spec, since_us=0, after_us=machine.now.context.store_us)
    if schedule_id not in machine.schedules and len(machine.schedules) + adding >= limits.SCHEDULES_MAX:
        raise errors.BadInput(f"a world has at most {limits.SCHEDULES_MAX} schedules")


def check_zones(machine: Machine, error: errors.UnknownZone) -> None:
    """User code named a zone that is unknown here. That is its mistake, unless this process knows no zone at all."""
    try:
        ZoneInfo("Etc/UTC")
    except (KeyError, ValueError, OSError):
        machine.drop_step(_lacking(error))


def change(machine: Machine, schedule_id: str, spec: Spec | None) -> bool:
    """Make, replace or remove a schedule. False if nothing had to be done."""
    return remove(machine, schedule_id) if spec is None else put(machine, schedule_id, spec)


def put(machine: Machine, schedule_id: str, spec: Spec) -> bool:
    """Make or replace a schedule that was checked. False if it was there already, just so."""
    known = machine.schedules.get(schedule_id)
    if known is not None and known.spec == spec:
        return False
    if known is not None:
        _disarm(machine, known)
    schedule = Schedule(schedule_id, spec, machine.now.context.store_us)
    machine.schedules[schedule_id] = schedule
    _arm(machine, schedule)
    return True


def remove(machine: Machine, schedule_id: str) -> bool:
    """False if there is no such schedule."""
    known = machine.schedules.pop(schedule_id, None)
    if known is None:
        return False
    _disarm(machine, known)
    machine.now.changed[_cell(schedule_id)] = digest.sha256(b"")
    return True


def fired(machine: Machine, timer: str) -> Schedule:
    """Its timer has fired, and is settled: set the next one. Whoever asks lets it happen."""
    schedule = machine.schedules[of_timer(timer)]
    schedule.fired += 1
    _arm(machine, schedule)
    return schedule


def clock_set_back(machine: Machine) -> None:
    """The store's clock was ahead before this step. What was armed by it and is now too far ahead is armed anew."""
    context = machine.now.context
    for _, schedule in sorted(machine.schedules.items()):
        if schedule.due_us <= context.time_us:
            continue
        first_us = next_us(schedule.spec, since_us=schedule.since_us, after_us=context.store_us)
        # The next but one is right where the first has just fired.
        if schedule.due_us > next_us(schedule.spec, since_us=schedule.since_us, after_us=first_us):
            _disarm(machine, schedule)
            _arm(machine, schedule)


def run_id(machine: Machine, schedule: Schedule) -> str:
    """The id of the run that it starts now."""
    number = schedule.fired
    while f"{schedule.id}@{number}" in machine.runs:  # left from an earlier schedule of this id
        number += 1
    return f"{schedule.id}@{number}"


def armed(machine: Machine, timer: str, *, step: int, ordinal: int) -> None:
    """Its timer has left the world, under this name."""
    schedule = machine.schedules[of_timer(timer)]
    schedule.step, schedule.ordinal = step, ordinal


def of_timer(name: str) -> str:
    """The id of the schedule that a timer of this name belongs to."""
    assert name.startswith(TIMER)
    return name.removeprefix(TIMER)


def listed(machine: Machine) -> list[Scheduled]:
    """In the order of their ids."""
    return [_described(schedule) for _, schedule in sorted(machine.schedules.items())]


def _arm(machine: Machine, schedule: Schedule) -> None:
    after_us = machine.now.context.store_us
    due_us = _next_in_step(schedule.spec, since_us=schedule.since_us, after_us=after_us)
    if due_us == schedule.due_us:  # it has fired, and the clock was set back a little since
        due_us = _next_in_step(schedule.spec, since_us=schedule.since_us, after_us=due_us)
    schedule.due_us = due_us
    schedule.step = schedule.ordinal = 0
    machine.ask_for_timer(TIMER + schedule.id, schedule.due_us)
    # As with runs, times are not in the digest: two worlds that did the same at other times have equal ones.
    content = structs.encode(schedule.spec), schedule.fired.to_bytes(8, "big")
    machine.now.changed[_cell(schedule.id)] = digest.hash_parts(b"schedule", *content)


def _disarm(machine: Machine, schedule: Schedule) -> None:
    if schedule.step:
        machine.give_up(schedule.step, schedule.ordinal)
    else:
        machine.forget_held(TIMER + schedule.id)


def _target(what: object) -> tuple[bool, str, bytes]:
    if not isinstance(what, calls.Call):
        return False, values.schema_name(type(what)), values.dump(what)
    if what.target.kind != "workflow":
        raise errors.BadInput(f"{what!r} is an effect; schedule a workflow that calls it, or an event")
    what.awaited = True
    return True, what.target.name, what.pack()


def _zone(name: str) -> Any:
    if not name:
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise errors.UnknownZone(name) from error


def _next_in_step(spec: Spec, *, since_us: int, after_us: int) -> int:
    """The same of a schedule that was declared where its zone is known: elsewhere, another process makes this step."""
    try:
        return next_us(spec, since_us=since_us, after_us=after_us)
    except errors.UnknownZone as error:
        raise _lacking(error) from error


def _lacking(error: errors.UnknownZone) -> errors.CannotStep:
    return errors.CannotStep(f"this host has no time zone {error.zone!r}; install tzdata", lasting=True)


def _cell(schedule_id: str) -> bytes:
    return b"s" + schedule_id.encode()


def _described(schedule: Schedule) -> Scheduled:
    spec = schedule.spec
    return Scheduled(
        id=schedule.id,
        what=spec.name,
        every=timedelta(microseconds=spec.every_us) if spec.every_us else None,
        cron=spec.cron or None,
        tz=spec.zone or "UTC",
        next=_EPOCH + timedelta(microseconds=schedule.due_us),
        fired=schedule.fired,
    )
