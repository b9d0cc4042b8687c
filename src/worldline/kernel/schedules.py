"""Schedules: events and runs that are started again and again, compiled to one-shot timers.

A schedule has at any time exactly one open timer. When that fires, the next one is set in the same step, and only then
is the event raised or the workflow started, so what those do to the schedule (replace it, remove it) applies to the
next timer.

When the next firing is due depends on the store's time of the step and on nothing else, except that one time does not
fire twice in a row. A store's clock that is set back shows times again, and they fire again. Firings that were missed
while the world was not hosted are not made up for one by one: the overdue timer fires once, and the next is the first
one still ahead. A process that lacks the time zone of a schedule it should fire cannot make that step (`CannotStep`),
and leaves it to others.

Same id and same specification: nothing happens, and the phase stays. Same id and another one: it is replaced.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from worldline.base import errors, limits
from worldline.kernel import machine as state
from worldline.kernel import run_requests
from worldline.kernel.authoring import schedule_spec
from worldline.kernel.authoring.schedule_spec import Spec
from worldline.kernel.machine import SCHEDULE_TIMER, Machine
from worldline.kernel.rows.row_records import Schedule
from worldline.model import ids


class ScheduleChange(msgspec.Struct, frozen=True, array_like=True):
    """The payload of the control input that makes a schedule; without a spec, that removes it."""

    id: str
    spec: Spec | None


class Trigger(msgspec.Struct, frozen=True, array_like=True):
    """The payload of the control input that lets a schedule happen now."""

    id: str


class Scheduled(msgspec.Struct, frozen=True):
    """A schedule, for people. Its id stays the same through all firings, replacements, forks and copies."""

    id: str
    what: str
    every: timedelta | None
    cron: str | None
    tz: str
    next: datetime
    fired: int


def check(machine: Machine, schedule_id: str, spec: Spec, *, adding: int = 0) -> None:
    """Refuse what this world cannot schedule, while the caller can still be told. `adding`: others that will follow."""
    ids.check_name(schedule_id, "a schedule's id")
    if spec.starts:
        flow = machine.program.workflows.get(spec.name)
        if flow is None:
            raise errors.BadInput(f"workflow {spec.name} is not one of program {machine.program.name!r}")
        flow.signature.unpack(spec.data)
    # Tried now: a zone that is unknown, or a time that never comes, shows while the caller can be told.
    _next_in_step(spec, since_us=0, after_us=machine.now.context.store_us)
    if schedule_id not in machine.schedules and len(machine.schedules) + adding >= limits.SCHEDULES_MAX:
        raise errors.BadInput(f"a world has at most {limits.SCHEDULES_MAX} schedules")


def change(machine: Machine, schedule_id: str, spec: Spec | None) -> bool:
    """Make, replace or remove a schedule. False if there was nothing to do."""
    return remove(machine, schedule_id) if spec is None else put(machine, schedule_id, spec)


def put(machine: Machine, schedule_id: str, spec: Spec) -> bool:
    """Make or replace a schedule that was checked. False if the world has exactly this one already."""
    known = machine.schedules.get(schedule_id)
    if known is not None and known.spec == spec:
        return False
    # Its timer must not fire for the new specification.
    if known is not None:
        _disarm(machine, known)
    schedule = Schedule(schedule_id, spec, machine.now.context.store_us)
    machine.put_schedule(schedule)
    _arm(machine, schedule)
    return True


def remove(machine: Machine, schedule_id: str) -> bool:
    """False if there is no such schedule."""
    known = machine.remove_schedule(schedule_id)
    if known is None:
        return False
    _disarm(machine, known)
    return True


def fired(machine: Machine, timer: str) -> Schedule:
    """Set the next timer of a schedule, whose last one has fired. The caller raises the event or starts the run."""
    schedule = machine.schedules[state.schedule_id(timer)]
    schedule.fire()
    # Before its event: what that does to the schedule is about this timer.
    _arm(machine, schedule)
    return schedule


def triggered(machine: Machine, schedule_id: str) -> Schedule:
    """Fire a schedule once besides its times: the timer stays as it is, and the firing counts. The caller raises the
    event or starts the run.
    """
    schedule = machine.schedules.get(schedule_id)
    if schedule is None:
        known = ", ".join(sorted(machine.schedules)) or "none"
        raise errors.NotFound(f"the world has no schedule {schedule_id!r}; it has: {known}")
    if schedule.spec.starts and schedule.spec.name not in machine.program.workflows:
        raise errors.NotFound(f"program {machine.program.name!r} has no workflow {schedule.spec.name!r} any more")
    schedule.fire()
    machine.put_schedule(schedule)
    return schedule


def clock_set_back(machine: Machine) -> None:
    """Set timers again that are too far ahead, because the store's clock was ahead before this step."""
    context = machine.now.context
    for _, schedule in sorted(machine.schedules.items()):
        if schedule.due_us <= context.time_us:
            continue
        first_us = schedule_spec.next_us(schedule.spec, since_us=schedule.since_us, after_us=context.store_us)
        # The next but one is right where the first has just fired.
        if schedule.due_us > schedule_spec.next_us(schedule.spec, since_us=schedule.since_us, after_us=first_us):
            _disarm(machine, schedule)
            _arm(machine, schedule)


def run_id(machine: Machine, schedule: Schedule) -> str:
    """Return the id of the run that it starts now."""
    number = schedule.fired
    while f"{schedule.id}@{number}" in machine.runs:  # left from an earlier schedule of this id
        number += 1
    return f"{schedule.id}@{number}"


def listed(machine: Machine) -> list[Scheduled]:
    """In the order of their ids."""
    return [_described(schedule) for _, schedule in sorted(machine.schedules.items())]


def _arm(machine: Machine, schedule: Schedule) -> None:
    after_us = machine.now.context.store_us
    due_us = _next_in_step(schedule.spec, since_us=schedule.since_us, after_us=after_us)
    if due_us == schedule.due_us:  # it has fired, and the clock was set back a little since
        due_us = _next_in_step(schedule.spec, since_us=schedule.since_us, after_us=due_us)
    schedule.arm(due_us)
    machine.put_schedule(schedule)
    run_requests.ask_for_timer(machine, SCHEDULE_TIMER + schedule.id, due_us)


def _disarm(machine: Machine, schedule: Schedule) -> None:
    # Without a number the timer is held back: it is no open work yet.
    if schedule.work:
        machine.work.give_up_numbered(schedule.work)
    else:
        machine.work.forget_held_timer(SCHEDULE_TIMER + schedule.id)


def _next_in_step(spec: Spec, *, since_us: int, after_us: int) -> int:
    """`schedule_spec.next_us` for a schedule that was declared where its zone is known. Where it is not, another
    process makes this step.
    """
    try:
        return schedule_spec.next_us(spec, since_us=since_us, after_us=after_us)
    except errors.UnknownZone as error:
        raise schedule_spec.lacking(error) from error


def _described(schedule: Schedule) -> Scheduled:
    spec = schedule.spec
    return Scheduled(
        id=schedule.id,
        what=spec.name,
        every=timedelta(microseconds=spec.every_us) if spec.every_us else None,
        cron=spec.cron or None,
        tz=spec.zone or "UTC",
        next=schedule_spec.EPOCH + timedelta(microseconds=schedule.due_us),
        fired=schedule.fired,
    )
