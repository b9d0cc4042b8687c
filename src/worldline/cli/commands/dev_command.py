"""`worldline dev`: host the programs of a file (`dev_session`), and show their runs (`dev_show`).

Ctrl-C and SIGTERM end it in order (`shutdown`): effects under way are given back, worlds are saved, leases are free.
The exit code is 130 after Ctrl-C and 0 after SIGTERM. A second signal ends it at once.
"""

from __future__ import annotations

import signal

import click

from worldline.base import errors
from worldline.terminal import command_session, configuration, output, shutdown, store_choice
from worldline.terminal.command_session import CommandSession


@command_session.command("dev")
@click.argument("target", required=False, metavar="[FILE[:NAME]]")
@click.option("--world", "names", multiple=True, metavar="NAME", help="Make this world if it is not there.")
@click.option("--reload/--no-reload", default=True, show_default=True, help="Adopt edits of the file.")
@click.option("--entries", "rows", is_flag=True, help="Show journal entries, one a line, and not runs.")
@configuration.option
async def dev(
    desk: CommandSession, *, target: str | None, names: tuple[str, ...], reload: bool, rows: bool, sets: tuple[str, ...]
) -> int:
    """Host the programs of FILE, and show their runs.

    Requests of `worldline.http` go only where `egress = worldline.ops.Egress(allow=[...])` in FILE says.
    """
    chosen = target or next(iter(desk.place.apps), None)
    if chosen is None:
        raise errors.BadInput(f'name the file that declares your program, or set app = "FILE" in {store_choice.FILE}')
    from worldline.cli.dev import dev_output as dev_show  # noqa: PLC0415 - the same
    from worldline.cli.dev import dev_session  # noqa: PLC0415 - other commands start without them

    settings = configuration.configure(desk.place, sets).settings
    session = dev_session.DevSession(desk, chosen, names, dev_show.Show(desk.out, rows=rows), settings)
    # Signals before anything is opened: Ctrl-C during a long restore must end it as cleanly as any other.
    with session.show.logging(), session.shutdown.signals():
        await session.run(reload=reload)
    return shutdown.leave(output.INTERRUPTED if session.shutdown.number is signal.SIGINT else 0)


COMMANDS: list[click.Command] = [dev]
