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
from worldline.cli.commands import (
    check_commands,
    dev_command,
    input_commands,
    process_commands,
    project_commands,
    reading_commands,
    schedule_commands,
    setting_commands,
    simulate_command,
    status_commands,
    universe_commands,
    work_commands,
    worker_list,
)
from worldline.cli.commands.feature_commands import GroupCommands
from worldline.host.feature_list import FEATURES
from worldline.terminal import command_session, output

# The help has them in this order, those of features among those of the core.
SECTIONS = {
    "Look at worlds": "list show why state journal follow snapshots diff runs effect timer dead schedule trace",
    "Talk to worlds": "create send ask run act explain relay",
    "Tend worlds": "pause resume archive label compact ref delete fork tree revert lease universe policy upgrade erase "
    "scrub abandon patch",
    "Copy worlds and stores": "export import backup restore ledger",
    "Keep a store": "gc new-key keys rotate-keys",
    "Run programs and roles": "init dev worker adapter orchestrator janitor up settings",
    "Check and measure": "replay prove verify check doctor bench anchor domain simulate",
}
ALIASES = {"log": "journal"}
COMMANDS = GroupCommands(
    [
        *reading_commands.COMMANDS,
        *work_commands.COMMANDS,
        *schedule_commands.COMMANDS,
        *input_commands.COMMANDS,
        *status_commands.COMMANDS,
        *worker_list.LEASES,
        *universe_commands.COMMANDS,
        *project_commands.COMMANDS,
        *dev_command.COMMANDS,
        *worker_list.COMMANDS,
        *process_commands.COMMANDS,
        *setting_commands.COMMANDS,
        *check_commands.COMMANDS,
        *simulate_command.COMMANDS,
    ]
)
# The same object, so an alias cannot come to differ.
COMMANDS.update({alias: COMMANDS[name] for alias, name in ALIASES.items()})


class Sections(click.Group):
    """The top level: its help lists commands by what they are for."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        wide = max(len(_title(name)) for name in self.commands)
        for title, names in SECTIONS.items():
            room = formatter.width - wide - 6
            there = {name: self.commands[name] for name in names.split() if name in self.commands}
            rows = [(_title(name).ljust(wide), each.get_short_help_str(room)) for name, each in there.items()]
            with formatter.section(title):
                formatter.write_dl(rows)


def _title(name: str) -> str:
    return ", ".join([name, *(alias for alias, meant in ALIASES.items() if meant == name)])


@click.group(
    "worldline",
    cls=Sections,
    commands=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(worldline.__version__, message="worldline %(version)s")
@command_session.shared
def group(**shared: Any) -> None:
    """Long-lived programs with a memory."""
    del shared  # read by the commands from the root context


def main(args: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code; every error is one line, or one object with `--json`."""
    given = list(sys.argv[1:] if args is None else args)
    # Looked for by hand: a command line that click cannot read has no parsed options.
    as_json = "--json" in given
    try:
        line = command_session.CommandLine(FEATURES)
        answer = group.main(args=given, prog_name="worldline", standalone_mode=False, obj=line)
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
