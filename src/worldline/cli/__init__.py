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
from worldline.features.anchors import commands as anchor_commands
from worldline.features.collection import commands as collection_commands
from worldline.features.copies import backup_commands
from worldline.features.copies import commands as copy_commands
from worldline.features.deletion import commands as deletion_commands
from worldline.features.deletion import ledger_commands
from worldline.features.diff import commands as diff_commands
from worldline.features.domains import cell_repair_commands, trace_commands
from worldline.features.domains import commands as act
from worldline.features.domains import domain_commands as domain
from worldline.features.encryption import commands as encryption_commands
from worldline.features.erasure import commands as erasure_commands
from worldline.features.forks import commands as fork_commands
from worldline.features.policy import commands as policy_commands
from worldline.features.quotas import commands as quota_commands
from worldline.features.relay import commands as relay_commands
from worldline.features.shadow import commands as shadow_commands
from worldline.host.feature_list import FEATURES
from worldline.terminal import command_session, output

for each in [*deletion_commands.UNIVERSE, *quota_commands.UNIVERSE, *setting_commands.UNIVERSE]:
    universe_commands.GROUP.add_command(each)

SECTIONS = {
    "Look at worlds": [
        *reading_commands.COMMANDS,
        *diff_commands.COMMANDS,
        *work_commands.COMMANDS,
        *schedule_commands.COMMANDS,
        *trace_commands.COMMANDS,
    ],
    "Talk to worlds": [*input_commands.COMMANDS, *act.COMMANDS, *relay_commands.COMMANDS],
    "Tend worlds": [
        *status_commands.COMMANDS,
        *deletion_commands.COMMANDS,
        *fork_commands.COMMANDS,
        *worker_list.LEASES,
        *universe_commands.COMMANDS,
        *policy_commands.COMMANDS,
        *shadow_commands.COMMANDS,
        *erasure_commands.COMMANDS,
        *cell_repair_commands.COMMANDS,
    ],
    "Copy worlds and stores": [*copy_commands.COMMANDS, *backup_commands.COMMANDS, *ledger_commands.COMMANDS],
    "Keep a store": [*collection_commands.COMMANDS, *encryption_commands.COMMANDS],
    "Run programs and roles": [
        *project_commands.COMMANDS,
        *dev_command.COMMANDS,
        *worker_list.COMMANDS,
        *process_commands.COMMANDS,
        *setting_commands.COMMANDS,
    ],
    "Check and measure": [
        *check_commands.COMMANDS,
        *anchor_commands.COMMANDS,
        *domain.COMMANDS,
        *simulate_command.COMMANDS,
    ],
}
ALIASES = {"log": "journal"}
COMMANDS = {str(each.name): each for commands in SECTIONS.values() for each in commands}
# The same object, so an alias cannot come to differ.
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
