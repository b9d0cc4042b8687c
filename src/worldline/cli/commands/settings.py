"""`worldline settings`: what processes that are started here would be set to, and what has set it."""

from __future__ import annotations

import click

from worldline.cli import common, configuration
from worldline.cli.commands import roles
from worldline.cli.common import Desk
from worldline.model import setting_names


@common.command("settings")
@click.argument("names", nargs=-1, metavar="[SECTION|NAME]...")
@click.option("--changed", is_flag=True, help="Only those that are not the default.")
@configuration.option
def settings(desk: Desk, *, names: tuple[str, ...], changed: bool, sets: tuple[str, ...]) -> None:
    """List all settings: value, origin, default, range.

    As `worldline worker`, `up` and the other roles would have them if they were started here.
    """
    for name in names:
        configuration.check_name(name, "settings", [*setting_names.SECTIONS, *setting_names.ALL])
    found = configuration.configure(desk.place, sets, base=roles.BASE)
    rows = [
        {
            "name": each.name,
            "value": setting_names.get(found.settings, each.name),
            "origin": found.origin(each.name),
            "default": setting_names.get(roles.BASE, each.name),
            "values": each.values,
            "variable": each.variable,
        }
        for each in setting_names.ALL.values()
        if not names or each.name in names or each.section in names
    ]
    if changed:
        rows = [row for row in rows if row["origin"] != configuration.DEFAULT]
    if not desk.out.as_json:
        for row in rows:
            row |= {key: setting_names.text_of(row[key]) for key in ("value", "default")}
    columns = {"NAME": "name", "VALUE": "value", "ORIGIN": "origin", "DEFAULT": "default", "MAY BE": "values"}
    desk.out.many(rows, columns, none="no setting is changed", key="name")


COMMANDS: list[click.Command] = [settings]
