"""What the worlds of a universe may do: `policy deny|only|drop|list|check`. Each change is kept."""

from __future__ import annotations

import click
import msgspec

from worldline.base import errors
from worldline.features.policy import calls
from worldline.inspect.entry_text import rfc3339, when
from worldline.terminal import command_session, output
from worldline.terminal.command_session import CommandSession

_SCOPES = click.Choice(["send", "receive", "effect"])
_COLUMNS = {
    "RULE": "number",
    "VERB": "verb",
    "SCOPE": "scope",
    "WORLDS": "worlds",
    "PROGRAM": "program",
    "PEERS": "peers",
    "NAMES": "names",
}


def _rule(function: command_session.Function) -> command_session.Function:
    for name, what in (
        ("--peer", "With which worlds: where to, or who sends. Of another universe: universe/world."),
        ("--program", "Of which programs."),
        ("--world", "Which worlds."),
    ):
        # Like decorators, the last one that is added is shown first.
        function = click.option(name, metavar="NAME|BEGIN*", default="*", show_default=True, help=what)(function)
    names = click.argument("names", metavar="[NAME|BEGIN*]", default="*")
    return click.argument("scope", metavar="send|receive|effect", type=_SCOPES)(names(function))


@command_session.command("deny")
@_rule
async def deny(desk: CommandSession, *, scope: str, names: str, world: str, program: str, peer: str) -> None:
    """Take something away from worlds: messages that they send or receive, or effects.

    When it returns, it holds for every step that is stored from then on.
    """
    await _add(desk, "deny", scope, names, world=world, program=program, peer=peer)


@command_session.command("only")
@_rule
async def only(desk: CommandSession, *, scope: str, names: str, world: str, program: str, peer: str) -> None:
    """Name all that worlds may send, receive or use, together with other such rules about them.

    When it returns, it holds for every step that is stored from then on.
    """
    await _add(desk, "only", scope, names, world=world, program=program, peer=peer)


async def _add(desk: CommandSession, verb: str, scope: str, names: str, *, world: str, program: str, peer: str) -> None:
    async with desk.open(programs=[]) as universe:
        rule = await calls.add_rule(universe, verb, scope, worlds=world, program=program, peers=peer, names=names)
    desk.out.one({"rule": rule}, [f"rule {rule.number} holds: {_said(rule)}"])


@command_session.command("drop")
@click.argument("number", type=int)
async def drop(desk: CommandSession, *, number: int) -> None:
    """Take a rule away, by its number."""
    async with desk.open(programs=[]) as universe:
        rule = await calls.drop_rule(universe, number)
    desk.out.one({"dropped": rule}, [f"rule {rule.number} is gone: {_said(rule)}"])


@command_session.command("list", many=True)
@click.option("--log", "shows_changes", is_flag=True, help="Which rules were added and dropped when, the newest first.")
async def list_rules(desk: CommandSession, *, shows_changes: bool, limit: int) -> None:
    """List the rules over what worlds of the universe may send, receive and use."""
    async with desk.open(programs=[]) as universe:
        found = [] if shows_changes else await calls.rules(universe)
        changes = await calls.changes(universe) if shows_changes else []
    if not shows_changes:
        none = "no rules: worlds of this universe may do everything"
        desk.out.many(found[:limit], _COLUMNS, none=none, key="number")
        return
    rows = [
        {
            "change": each.change,
            "time": rfc3339(when(each.time_us)),
            "added": each.added,
            **msgspec.structs.asdict(each.rule),
        }
        for each in changes
    ]
    columns = {"CHANGE": "change", "TIME": "time", "ADDED": "added", **_COLUMNS}
    desk.out.many(rows[:limit], columns, none="this universe never had a rule", key="change")


@command_session.command("check")
@click.argument("world")
@click.option("--effect", metavar="NAME", help="May it use this effect?")
@click.option("--to", metavar="WORLD", help="May it send to this world?")
@click.option("--event", metavar="NAME", default="", help="With --to: a schema, or inbox:NAME.")
async def check(desk: CommandSession, *, world: str, effect: str | None, to: str | None, event: str) -> int:
    """Say whether a world may use an effect, or send a message, and which rule is against it."""
    if to is not None and not event:
        raise errors.BadInput("--to needs --event: which message, by schema, or inbox:NAME")
    async with desk.open(programs=[]) as universe:
        why = await calls.why_not(universe, world, to=to, event=event, effect=effect)
    desk.out.one({"world": world, "allowed": why is None, "why": why}, ["it may" if why is None else why])
    return 0 if why is None else output.NEGATIVE


def _said(rule: calls.Rule) -> str:
    who = f"worlds {rule.worlds}" + ("" if rule.program == "*" else f" of program {rule.program}")
    what = {"send": "send {} to {}", "receive": "receive {} from {}", "effect": "use {}"}[rule.scope]
    may = "may not" if rule.verb == "deny" else "may only"
    return f"{who} {may} {what.format(rule.names, rule.peers)}"


GROUP = click.Group(
    "policy", commands=[deny, only, drop, list_rules, check], help="What worlds of a universe may send and use."
)
