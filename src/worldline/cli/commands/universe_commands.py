"""The universes of a store: list, create; who may send messages to its worlds: allow, deny, allowed. Each change of
what is allowed is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from worldline.api import store_universes
from worldline.cli.commands import setting_commands
from worldline.cli.commands.feature_commands import GroupCommands
from worldline.features.abroad import calls as abroad_calls
from worldline.features.quotas import commands as quota_commands
from worldline.inspect.entry_text import rfc3339, when
from worldline.terminal import command_session, output
from worldline.terminal.command_session import CommandSession

Function = Callable[..., Any]


def _patterns(default: str | None) -> Callable[[Function], Function]:
    def add(function: Function) -> Function:
        for name, what in (
            ("--event", "Which messages: by schema, or inbox:NAME."),
            ("--to", "Which worlds here."),
            ("--world", "Which of its worlds."),
        ):
            function = click.option(
                name, metavar="NAME|BEGIN*", default=default, show_default=default is not None, help=what
            )(function)
        return function

    return add


@command_session.command("allow")
@click.argument("sender", metavar="UNIVERSE")
@_patterns("*")
async def allow(desk: CommandSession, *, sender: str, world: str, to: str, event: str) -> None:
    """Let worlds of another universe send messages here.

    UNIVERSE is one of this store, or `peer:universe`, or an id.
    """
    async with desk.open(programs=[]) as universe:
        changed = await abroad_calls.allow(universe, sender, worlds=world, to=to, events=event)
    said = f"{sender} may send here" if changed else f"{sender} may send that here already"
    desk.out.one({"universe": sender, "allowed": True, "changed": changed}, [said])


@command_session.command("deny")
@click.argument("sender", metavar="UNIVERSE")
@_patterns(None)
async def deny(desk: CommandSession, *, sender: str, world: str | None, to: str | None, event: str | None) -> int:
    """Take back what was allowed to a universe: all, or that with these very patterns."""
    async with desk.open(programs=[]) as universe:
        taken = await abroad_calls.deny(universe, sender, worlds=world, to=to, events=event)
    said = (
        f"{len(taken)} of the grants of {sender} taken back" if taken else f"nothing like that was allowed to {sender}"
    )
    desk.out.one({"universe": sender, "allowed": False, "taken": taken}, [said])
    # A script that means to lock a sender out must notice that it named the wrong one.
    return 0 if taken else output.NEGATIVE


@command_session.command("allowed", many=True)
@click.option("--log", "shows_changes", is_flag=True, help="What was allowed and denied when, the newest first.")
async def allowed(desk: CommandSession, *, shows_changes: bool, limit: int) -> None:
    """List what other universes may send here."""
    async with desk.open(programs=[]) as universe:
        found = [] if shows_changes else await abroad_calls.allowed(universe)
        changes = await abroad_calls.changes(universe) if shows_changes else []
    columns = {"UNIVERSE": "universe", "WORLDS": "worlds", "TO": "to", "EVENTS": "events", "ID": "universe_id"}
    if not shows_changes:
        desk.out.many(found[:limit], columns, none="no other universe may send here", key="universe")
        return
    rows = [
        {"change": each.change, "time": rfc3339(when(each.time_us)), "allowed": each.allowed, **_fields(what)}
        for each in changes
        for what in each.what
    ]
    shown = {"CHANGE": "change", "TIME": "time", "ALLOWED": "allowed", **columns}
    desk.out.many(rows[:limit], shown, none="nothing was ever allowed here", key="change")


def _fields(what: abroad_calls.Allowed) -> dict[str, str]:
    return {
        "universe": what.universe,
        "worlds": what.worlds,
        "to": what.to,
        "events": what.events,
        "universe_id": what.universe_id,
    }


# --- Which there are -----------------------------------------------------------------------------------------------


@command_session.command("list", many=True)
@click.option("--count", is_flag=True, help="Count the bytes now: reads all of the store.")
async def list_universes(desk: CommandSession, *, count: bool, limit: int) -> None:
    """List the universes of the store: worlds, bytes, and how much of its quota each uses.

    Bytes are as they were last counted.
    """
    async with desk.open_store() as store:
        found = await store_universes.listed(store, count=count)
    rows = [_row(each) for each in found[:limit]]
    columns = {
        "NAME": "name",
        "WORLDS": "worlds",
        "BYTES": "bytes",
        "EFFECTS": "effects",
        "PINS": "pins",
        "QUOTA": "uses",
        "ID": "id",
    }
    desk.out.many(rows, columns, none="no universe in this store", key="name")


@command_session.command("create")
@click.argument("name")
async def create(desk: CommandSession, *, name: str) -> int:
    """Make a universe.

    Workers that serve its name, or all universes, find it by themselves.
    """
    async with desk.open_store() as store:
        made = await store_universes.create(store, name)
    said = f"universe {name!r} is made" if made else f"there is a universe {name!r} already"
    desk.out.one({"universe": name, "created": made}, [said])
    return 0 if made else output.NEGATIVE  # an answer, and no error: a script may create what is there already


def _row(each: store_universes.UniverseInfo) -> dict[str, Any]:
    used = {**quota_commands.shown(each.use), "uses": quota_commands.uses(each.use)}
    return {"name": each.name, "id": each.id, "created": rfc3339(when(each.created_us)), **used}


GROUP = click.Group(
    "universe",
    commands=GroupCommands(
        [list_universes, create, allow, deny, allowed, *setting_commands.UNIVERSE], group="universe"
    ),
    help="What universes have and may have, and who may send to one.",
)
COMMANDS: list[click.Command] = [GROUP]
