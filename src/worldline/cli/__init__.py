"""The command line, `worldline`. `docs/cli.md` is its manual.

Worlds are the default noun (`worldline list`, `worldline send alice ...`); runs, effects, timers, dead letters and
names have nouns of their own. Exit codes: 0 yes; 1 a negative answer; 2 usage; 3 not found; 4 refused or conflict; 5
the store is out of reach or corrupt; 6 timeout, or no worker hosts the world; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import click

import worldline
from worldline.base import errors
from worldline.cli import common, output
from worldline.cli.commands import (
    branches,
    checks,
    compare,
    dev,
    look,
    policy,
    projects,
    relay,
    roles,
    schedules,
    settings,
    simulate,
    talk,
    tend,
    universes,
    upgrade,
    work,
    workers,
)
from worldline.cli.flow import act, by_hand, domain, trace
from worldline.cli.upkeep import anchors, backups, collection, deletion, erase, keys, ledger, world_files

for each in [*deletion.UNIVERSE, *settings.UNIVERSE]:
    universes.GROUP.add_command(each)

SECTIONS = {
    "Look at worlds": [*look.COMMANDS, *compare.COMMANDS, *work.COMMANDS, *schedules.COMMANDS, *trace.COMMANDS],
    "Talk to worlds": [*talk.COMMANDS, *act.COMMANDS, *relay.COMMANDS],
    "Tend worlds": [
        *tend.COMMANDS,
        *deletion.COMMANDS,
        *branches.COMMANDS,
        *workers.LEASES,
        *universes.COMMANDS,
        *policy.COMMANDS,
        *upgrade.COMMANDS,
        *erase.COMMANDS,
        *by_hand.COMMANDS,
    ],
    "Copy worlds and stores": [*world_files.COMMANDS, *backups.COMMANDS, *ledger.COMMANDS],
    "Keep a store": [*collection.COMMANDS, *keys.COMMANDS],
    "Run programs and roles": [
        *projects.COMMANDS,
        *dev.COMMANDS,
        *workers.COMMANDS,
        *roles.COMMANDS,
        *settings.COMMANDS,
    ],
    "Check and measure": [*checks.COMMANDS, *anchors.COMMANDS, *domain.COMMANDS, *simulate.COMMANDS],
}
ALIASES = {"log": "journal"}
COMMANDS = {str(each.name): each for commands in SECTIONS.values() for each in commands}
COMMANDS |= {alias: COMMANDS[name] for alias, name in ALIASES.items()}


class Sections(click.Group):
    """The top level: its help lists commands by what they are for."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        also = {name: alias for alias, name in ALIASES.items()}
        wide = max(len(_title(each, also)) for each in self.commands.values())
        for title, commands in SECTIONS.items():
            room = formatter.width - wide - 6
            rows = [(_title(each, also).ljust(wide), each.get_short_help_str(room)) for each in commands]
            with formatter.section(title):
                formatter.write_dl(rows)


def _title(command: click.Command, also: dict[str, str]) -> str:
    name = str(command.name)
    return f"{name}, {also[name]}" if name in also else name


@click.group(
    "worldline",
    cls=Sections,
    commands=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(worldline.__version__, message="worldline %(version)s")
@common.shared
def group(**shared: Any) -> None:
    """Long-lived programs with a memory."""
    del shared  # read by the commands from the root context


def main(args: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code; every error is one line, or one object with `--json`."""
    given = list(sys.argv[1:] if args is None else args)
    as_json = "--json" in given
    try:
        answer = group.main(args=given, prog_name="worldline", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        output.write(error.format_message())
        return output.USAGE
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else "worldline"
        output.write_error("usage", error.format_message().rstrip("."), f"see `{where} --help`", as_json=as_json)
        return output.USAGE
    except (click.Abort, KeyboardInterrupt):
        return output.INTERRUPTED
    except (errors.Error, TimeoutError) as error:
        return output.complain(error, as_json=as_json)
    except BrokenPipeError:  # what reads the answer has had enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to write at the end
        return output.NEGATIVE
    except OSError as error:  # of a path that the system cannot take, too long a one say
        output.write_error(
            errors.BadInput.code, f"{error.filename or 'a file'}: {error.strerror or error}", "", as_json=as_json
        )
        return output.USAGE
    return answer if isinstance(answer, int) else 0
