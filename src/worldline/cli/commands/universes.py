"""Who may send messages to the worlds of a universe: allow, deny, allowed. Each change is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from worldline.cli import common, output
from worldline.cli.common import Desk
from worldline.client.access import grants
from worldline.inspect.render import rfc3339, when

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


@common.command("allow")
@click.argument("sender", metavar="UNIVERSE")
@_patterns("*")
async def allow(desk: Desk, *, sender: str, world: str, to: str, event: str) -> None:
    """Let worlds of another universe send messages here.

    UNIVERSE is one of this store, or `peer:universe`, or an id.
    """
    async with desk.open(programs=[]) as universe:
        changed = await grants.allow(universe, sender, worlds=world, to=to, events=event)
    said = f"{sender} may send here" if changed else f"{sender} may send that here already"
    desk.out.one({"universe": sender, "allowed": True, "changed": changed}, [said])


@common.command("deny")
@click.argument("sender", metavar="UNIVERSE")
@_patterns(None)
async def deny(desk: Desk, *, sender: str, world: str | None, to: str | None, event: str | None) -> int:
    """Take back what was allowed to a universe: all, or that with these very patterns."""
    async with desk.open(programs=[]) as universe:
        taken = await grants.deny(universe, sender, worlds=world, to=to, events=event)
    said = (
        f"{len(taken)} of the grants of {sender} taken back" if taken else f"nothing like that was allowed to {sender}"
    )
    desk.out.one({"universe": sender, "allowed": False, "taken": taken}, [said])
    return 0 if taken else output.NEGATIVE


@common.command("allowed", many=True)
@click.option("--log", "shows_changes", is_flag=True, help="What was allowed and denied when, the newest first.")
async def allowed(desk: Desk, *, shows_changes: bool, limit: int) -> None:
    """List what other universes may send here."""
    async with desk.open(programs=[]) as universe:
        found = [] if shows_changes else await grants.allowed(universe)
        changes = await grants.changes(universe) if shows_changes else []
    columns = {"UNIVERSE": "universe", "WORLDS": "worlds", "TO": "to", "EVENTS": "events", "ID": "universe_id"}
    if not shows_changes:
        desk.out.many(found[:limit], columns, none="no other universe may send here", key="universe")
        return
    rows = [
        {"change": each.change, "time": rfc3339(when(each.time_us)), "allowed": each.allowed, **_fields(what)}
        for each in changes for what in each.what
    ]  # fmt: skip
    shown = {"CHANGE": "change", "TIME": "time", "ALLOWED": "allowed", **columns}
    desk.out.many(rows[:limit], shown, none="nothing was ever allowed here", key="change")


def _fields(what: grants.Allowed) -> dict[str, str]:
    return {
        "universe": what.universe, "worlds": what.worlds, "to": what.to, "events": what.events,
        "universe_id": what.universe_id,
    }  # fmt: skip


COMMANDS: list[click.Command] = [
    click.Group("universe", commands=[allow, deny, allowed], help="Which other universes may send messages here.")
]
