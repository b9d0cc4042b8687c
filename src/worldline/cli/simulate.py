"""`worldline simulate`: run a program, or the project's own workloads, on many seeds of a cluster that breaks.

The simulator stands above everything here, so it is looked up by name when the command runs. Exit code 1 means that a
seed failed, or that a boundary was never stopped at when all of them had to be (`--every-cell`).
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

import click
import msgspec

from worldline.base import env_os, errors
from worldline.cli import common, output
from worldline.cli.common import Desk

if TYPE_CHECKING:
    from types import ModuleType

    from worldline.sim.campaign import Campaign, Job

SEEDS_DEFAULT = 100
LIST = "list"


class Guard(msgspec.Struct, frozen=True):
    guard: str
    does: str
    breaks: list[str]


@common.command("simulate")
@click.argument("file", required=False, metavar="[FILE[:SCENARIO]]")
@click.option("--seeds", type=click.IntRange(min=1), metavar="N", help="How many. [default: 100, or 1 with --seed]")
@click.option("--seed", type=click.IntRange(min=0), metavar="S", help="The first one.")
@click.option("--profile", default="", metavar="P", help="What goes wrong: a name, or FIELD=VALUE,... [default: swarm]")
@click.option("--shrink/--no-shrink", default=None, help="Make failures smaller. [default: the first one]")
@click.option("--without", default="", metavar="GUARD", help="With one guard switched off; `list` names them.")
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Processes. [default: one for each core]")
@click.option("--keep-going", is_flag=True, help="Do not end at the first failure.")
@click.option("--every-cell", is_flag=True, help="Fail if a boundary and fault that can meet never did.")
def simulate(
    desk: Desk, *, file: str | None, seeds: int | None, seed: int | None, profile: str, shrink: bool | None,
    without: str, jobs: int | None, keep_going: bool, every_cell: bool,
) -> int:  # fmt: skip
    """Simulate a cluster that breaks in every way, once for each seed.

    FILE is a Python file with a program and `async def scenario(universe)`; without one, the project's own workloads
    are run.
    """
    if without == LIST:
        return _list(desk)
    _check_guard(without)
    job = _sim("campaign").Job(file or "", without, profile)
    job.profile_of(0)  # a profile that makes no sense is said before anything starts
    first, count = seed or 0, seeds or (1 if seed is not None else SEEDS_DEFAULT)
    env = env_os.OsEnv()
    began_us = env.monotonic_us()
    with common.quiet_logs(), desk.out.progress("simulating") as progress:
        ran: Campaign = _sim("campaign").campaign(
            range(first, first + count), job=job, jobs=jobs or len(os.sched_getaffinity(0)), keep_going=keep_going,
            progress=progress,
        )  # fmt: skip
    seeds_per_s = round(ran.seeds * 1_000_000 / max(1, env.monotonic_us() - began_us), 2)
    _say(desk, ran, job, seeds_per_s, shrink=shrink, every_cell=every_cell)
    return output.NEGATIVE if ran.failures or (every_cell and ran.missed) else 0


def _sim(name: str) -> ModuleType:
    return importlib.import_module(f"worldline.sim.{name}")


def _check_guard(without: str) -> None:
    guards = _sim("faults.ablations").GUARDS
    if without and without not in guards:
        raise errors.BadInput(f"no guard {without!r}; `worldline simulate --without list` names them")


def _list(desk: Desk) -> int:
    guards = _sim("faults.ablations").GUARDS
    found = [Guard(name, guard.does, list(guard.breaks)) for name, guard in guards.items()]
    desk.out.many(found, {"GUARD": "guard", "DOES": "does", "BREAKS": "breaks"}, none="", key="guard")
    return 0


def _say(
    desk: Desk, ran: Campaign, job: Job, seeds_per_s: float, *, shrink: bool | None, every_cell: bool
) -> None:  # fmt: skip
    smaller = _smaller(desk, ran, job, shrink)
    if desk.out.as_json:
        said: dict[str, Any] = {
            "seeds": ran.seeds,
            "failures": [{"seed": each.seed, "invariant": each.invariant} for each in ran.failures],
            "cells": {"hit": ran.hit, "of": ran.of},
            "trace": ran.trace,
            "seeds_per_s": seeds_per_s,
        }
        if smaller:
            said["shrunk"] = smaller
        if every_cell:
            said["missed"] = [" x ".join(cell) for cell in ran.missed]
        desk.out.json(said)
        return
    shrinking = _sim("shrinker")
    shown = {each.seed: each for each in smaller}
    for failure in ran.failures:
        if failure.seed in shown:
            lines = shrinking.report(shown[failure.seed], job)
        else:
            again = shrinking.command(failure.seed, job)
            lines = [f"seed {failure.seed} breaks {failure.invariant}: {failure.what}", f"  again: {again}"]
        for line in lines:
            desk.out.line(line)
    if every_cell:
        for boundary, fault in ran.missed:
            desk.out.line(f"never hit: {fault} at {boundary}")
    verdict = f"{len(ran.failures)} failed" if ran.failures else "all hold"
    desk.out.line(
        f"{ran.seeds} seeds, {verdict}; {ran.hit} of {ran.of} cells hit; {seeds_per_s} seeds/s; trace {ran.trace[:16]}"
    )


def _smaller(desk: Desk, ran: Campaign, job: Job, shrink: bool | None) -> list[Any]:
    """The failures made smaller: the first for people, all when asked, none for programs that did not ask."""
    wanted = ran.failures if shrink else ran.failures[:1] if shrink is None and not desk.out.as_json else []
    found = []
    scenario = _sim("campaign").load(job.target) if wanted else None
    with common.quiet_logs():
        for failure in wanted:
            desk.out.note(f"seed {failure.seed} breaks {failure.invariant}; making it smaller")
            smaller = _sim("shrinker").shrink(failure.seed, job=job, scenario=scenario)
            found += [smaller] if smaller is not None else []
    return found


COMMANDS: list[click.Command] = [simulate]
