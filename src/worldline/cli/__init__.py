"""The command line, `worldline`. `docs/cli.md` is its manual.

Worlds are the default noun (`worldline list`, `worldline send alice ...`); runs, effects, timers, dead letters and
names have nouns of their own. Exit codes: 0 yes; 1 a negative answer; 2 usage; 3 not found; 4 refused or conflict; 5
the store is out of reach or corrupt; 6 timeout, or nobody hosts the world; 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

import worldline
from worldline.base import errors
from worldline.cli import checks, common, dev, look, output, projects, roles, simulate, talk, tend, work, workers

COMMANDS = [
    *look.COMMANDS, *talk.COMMANDS, *tend.COMMANDS, *work.COMMANDS, *projects.COMMANDS, *dev.COMMANDS, *checks.COMMANDS,
    *roles.COMMANDS, *workers.COMMANDS,
    *simulate.COMMANDS,
]  # fmt: skip


@click.group("worldline", commands=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
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
        click.echo(error.format_message())
        return output.USAGE
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else "worldline"
        output.write_error("usage", error.format_message().rstrip("."), f"see `{where} --help`", as_json=as_json)
        return output.USAGE
    except (click.Abort, KeyboardInterrupt):
        return output.INTERRUPTED
    except (errors.Error, TimeoutError) as error:
        return output.complain(error, as_json=as_json)
    return answer if isinstance(answer, int) else 0
