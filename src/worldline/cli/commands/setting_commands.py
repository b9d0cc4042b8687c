"""`worldline settings`: what processes that are started here would be set to, and what has set it; `worldline universe
settings`: what is stored with a universe, for every process.
"""

from __future__ import annotations

from typing import Any

import click

from worldline.base import errors
from worldline.cli.commands import process_commands
from worldline.client import setting_calls
from worldline.client.setting_calls import UniverseSetting
from worldline.model import setting_names
from worldline.terminal import command_session, configuration, suggest
from worldline.terminal.command_session import CommandSession

OWN = "default"  # instead of a value: each process goes by its own again


@command_session.command("settings")
@click.argument("names", nargs=-1, metavar="[SECTION|NAME]...")
@click.option("--changed", is_flag=True, help="Only those that are not the default.")
@configuration.option
async def settings(desk: CommandSession, *, names: tuple[str, ...], changed: bool, sets: tuple[str, ...]) -> None:
    """List all settings: value, origin, default, range.

    As `worldline worker`, `up` and the other roles would have them if they were started here. What is stored with the
    universe decides before all others.
    """
    for name in names:  # first: a slip in a name is said before a store is opened
        configuration.check_name(name, "settings", [*setting_names.SECTIONS, *setting_names.ALL])
    found = configuration.configure(desk.place, sets, base=process_commands.BASE)
    # What is stored with the universe decides before everything else, so it is shown in the place of what was said
    # here.
    stored = {each.name: each for each in await _stored(desk)}
    rows = [
        {
            "name": each.name,
            "value": stored[each.name].value if each.name in stored else setting_names.get(found.settings, each.name),
            "origin": f"universe {desk.place.universe!r}" if each.name in stored else found.origin(each.name),
            "default": setting_names.get(process_commands.BASE, each.name),
            "values": each.values,
            "variable": each.variable,
        }
        for each in setting_names.ALL.values()
        if not names or each.name in names or each.section in names
    ]
    if changed:
        rows = [row for row in rows if row["origin"] != configuration.DEFAULT]
    if not desk.out.as_json:  # programs get values of their own types
        for row in rows:
            row |= {key: setting_names.text_of(row[key]) for key in ("value", "default")}
    columns = {"NAME": "name", "VALUE": "value", "ORIGIN": "origin", "DEFAULT": "default", "MAY BE": "values"}
    desk.out.many(rows, columns, none="no setting is changed", key="name")


async def _stored(desk: CommandSession) -> list[UniverseSetting]:
    """Return what the universe has, if there is one. Settings are shown also where the store cannot be read."""
    try:
        async with desk.open(programs=[]) as universe:
            return await setting_calls.stored(universe)
    except (errors.NotFound, errors.StoreMissing):  # nothing is stored yet, which is no trouble
        return []
    except errors.StoreError as error:
        desk.out.note(f"the store cannot be read ({error}): settings that are stored with the universe are left out")
        return []


@command_session.command("settings")
@click.argument("sets", nargs=-1, metavar="[NAME=VALUE]...")
async def of_universe(desk: CommandSession, *, sets: tuple[str, ...]) -> None:
    """Show or choose the settings that are stored with the universe.

    Every process goes by them, whatever its own settings say: what is kept of worlds, and when inputs are refused.
    NAME=default: each process goes by its own again.
    """
    wanted = _parse(sets)
    async with desk.open(programs=[]) as universe:
        if wanted:
            await setting_calls.choose(universe, wanted)
        found = await setting_calls.stored(universe)
    rows = [
        {
            "name": each.name,
            "value": _shown(desk, each.value),
            "by": each.by,
            "default": _shown(desk, _default(each.name)),
        }
        for each in found
    ]
    columns = {"NAME": "name", "VALUE": "value", "BY": "by", "DEFAULT": "default"}
    none = f"nothing is stored with universe {desk.place.universe!r}: each process goes by its own settings"
    desk.out.many(rows, columns, none=none, key="name")


def _default(name: str) -> Any:
    return setting_names.ALL[name].default


def _shown(desk: CommandSession, value: Any) -> Any:
    return value if desk.out.as_json else setting_names.text_of(value)


def _parse(sets: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in sets:
        name, equals, text = each.partition("=")
        if not equals:
            raise errors.BadInput(f"use NAME=VALUE, such as pressure.inbox_items_max=500, not {each!r}")
        if name not in setting_names.OF_UNIVERSE:
            # A name that exists, but not for a universe, is no slip.
            near = "" if name in setting_names.ALL else suggest.near(name, setting_names.OF_UNIVERSE)
            raise errors.BadInput(setting_calls.refusal(name) + near)
        if name in found:
            raise errors.BadInput(f"{name} is given twice; leave one away")
        found[name] = None if text == OWN else setting_names.value_of(name, text)
    return found


UNIVERSE: list[click.Command] = [of_universe]
COMMANDS: list[click.Command] = [settings]
