"""Schedules of worlds: list, cancel, trigger.

A schedule is named by its world and its own id, which stays; its timer has another id after each firing.
"""

from __future__ import annotations

from datetime import datetime

import click
import msgspec

from worldline.base import errors
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.inspect import store_queries
from worldline.kernel import control_commands, machine, schedules, user_values
from worldline.model import ids
from worldline.model.work import WorkKind
from worldline.terminal import command_session, output, suggest
from worldline.terminal.command_session import CommandSession


class ScheduleRow(msgspec.Struct, frozen=True):
    """A schedule, as it is listed."""

    id: str
    world: str
    what: str
    when: str
    next: datetime
    fired: int


@command_session.command("list", many=True)
@click.argument("world", required=False)
async def list_schedules(desk: CommandSession, *, world: str | None, limit: int) -> None:
    """List schedules, of one world or of all, by world and id."""
    async with desk.open(programs=[]) as universe:
        named = [await desk.world(universe, world)] if world is not None else await _with_schedules(universe)
        found: list[ScheduleRow] = []
        for each in named:
            if len(found) < limit:  # a machine is read for each world: those beyond the limit are not shown
                found += [_shown(each.name, one) for one in schedules.listed(await each.machine())]
    columns = {"ID": "id", "WORLD": "world", "WHAT": "what", "WHEN": "when", "NEXT": "next", "FIRED": "fired"}
    desk.out.many(found[:limit], columns, none="no schedules here")


@command_session.command("cancel", asks=True)
@click.argument("world")
@click.argument("schedule")
@command_session.TIMEOUT
async def cancel_schedule(desk: CommandSession, *, world: str, schedule: str, timeout: float | None) -> None:
    """End a schedule. What it has started goes on."""
    async with desk.open(programs=[]) as universe:
        found = await desk.world(universe, world)
        await _check(found, schedule)  # before asking: a world that no process hosts could not say that there is none
        desk.confirm(f"Cancel schedule {schedule!r} of world {world!r}?")
        asked = found.command(control_commands.SCHEDULE, schedules.ScheduleChange(schedule, None))
        answer, _ = await desk.answer(found, asked, timeout)
    if not user_values.load(bool, answer):  # it ended between the check and the command
        raise errors.NotFound(f"world {world!r} has no schedule {schedule!r} any more")
    said = {"world": world, "schedule": schedule, "cancelled": True}
    desk.out.one(said, [f"schedule {schedule} of {world} is cancelled"])


@command_session.command("trigger")
@click.argument("world")
@click.argument("schedule")
@command_session.TIMEOUT
async def trigger_schedule(desk: CommandSession, *, world: str, schedule: str, timeout: float | None) -> None:
    """Let a schedule happen now, once. Its times stay as they are."""
    async with desk.open(programs=[]) as universe:
        found = await desk.world(universe, world)
        await _check(found, schedule)
        asked = found.command(control_commands.TRIGGER, schedules.Trigger(schedule))
        answer, _ = await desk.answer(found, asked, timeout)
    run = user_values.load(str | None, answer)
    did = "its event was raised" if run is None else f"run {run} was started"
    desk.out.one({"world": world, "schedule": schedule, "run": run}, [f"schedule {schedule} of {world}: {did}"])


async def _with_schedules(connection: Connection) -> list[Handle]:
    """The worlds that have a schedule, by name: each has a timer for each of them."""
    found: dict[ids.Address, None] = {}
    async for each in store_queries.open_work(connection, None):
        # By their timers, which are in one range: schedules themselves are in the states of worlds, read one by one.
        if each.work.kind is WorkKind.TIMER and each.work.name.startswith(machine.SCHEDULE_TIMER):
            found[each.at] = None
    return [
        Handle(connection, name) for name in sorted((await store_queries.world_names(connection, list(found))).values())
    ]


async def _check(world: Handle, schedule: str) -> None:
    """Before anything is asked: whether there is one, with ids like it if there is none."""
    known = (await world.machine()).schedules
    if schedule not in known:
        raise errors.NotFound(f"world {world.name!r} has no schedule {schedule!r}{suggest.near(schedule, known)}")


def _shown(world: str, scheduled: schedules.Scheduled) -> ScheduleRow:
    when = (
        f"every {output.lasting(scheduled.every.total_seconds())}"
        if scheduled.every
        else f"{scheduled.cron} ({scheduled.tz})"
    )
    return ScheduleRow(scheduled.id, world, scheduled.what, when, scheduled.next, scheduled.fired)


COMMANDS: list[click.Command] = [
    click.Group(
        "schedule",
        commands=[list_schedules, cancel_schedule, trigger_schedule],
        help="List, cancel and trigger schedules of worlds.",
    )
]
