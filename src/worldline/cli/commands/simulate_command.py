"""`worldline simulate`: run a program, or a suite of programs and hosts, on many seeds of a cluster that breaks.

Exit code 1 means that a seed failed, or that a boundary was never stopped at when all of them had to be
(`--every-cell`).
"""

from __future__ import annotations

import click

from worldline.terminal import command_session
from worldline.terminal.command_session import CommandSession

LIST = "list"


@command_session.command("simulate")
@click.argument("file", required=False, metavar="[FILE[:SCENARIO]]")
@click.option("--seeds", type=click.IntRange(min=1), metavar="N", help="How many. [default: 100, or 1 with --seed]")
@click.option("--seed", type=click.IntRange(min=0), metavar="S", help="The first one.")
@click.option("--profile", default="", metavar="P", help="What goes wrong: a name, or FIELD=VALUE,... [default: swarm]")
@click.option("--shrink/--no-shrink", default=None, help="Make failures smaller. [default: the first one]")
@click.option("--suite", default="", metavar="MODULE[:NAME]", help="What is run without FILE, and its guards.")
@click.option("--without", default="", metavar="GUARD", help="With one guard of the suite off; `list` names them.")
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Processes. [default: one for each core]")
@click.option("--keep-going", is_flag=True, help="Do not end at the first failure.")
@click.option("--every-cell", is_flag=True, help="Fail if a boundary and fault that can meet never did.")
def simulate(
    desk: CommandSession,
    *,
    file: str | None,
    seeds: int | None,
    seed: int | None,
    profile: str,
    shrink: bool | None,
    suite: str,
    without: str,
    jobs: int | None,
    keep_going: bool,
    every_cell: bool,
) -> int:
    """Run a program on a simulated cluster that breaks.

    Each seed is one run, with faults drawn from it.

    FILE is a Python file with a program and `async def scenario(universe)`. A suite is what the project itself runs
    instead: in a clone of its repository, --suite tests.campaign.suite.
    """
    from worldline.cli.commands import simulate_campaign  # noqa: PLC0415 - the simulator; other commands start without loading it

    if without == LIST:  # not a command of its own: guards are listed where one of them is named
        return simulate_campaign.list_guards(desk, suite)
    asked = simulate_campaign.CampaignRequest(
        file or "",
        suite,
        without,
        profile,
        first=seed or 0,
        # A seed that is named is most often one to be seen again.
        count=seeds or (1 if seed is not None else simulate_campaign.SEEDS_DEFAULT),
        jobs=jobs,
        keep_going=keep_going,
        every_cell=every_cell,
        shrink=shrink,
    )
    return simulate_campaign.run(desk, asked)


COMMANDS: list[click.Command] = [simulate]
