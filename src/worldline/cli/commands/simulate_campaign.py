"""What `worldline simulate` does: a campaign of seeds, and what came of it, for people and as JSON.

Apart from the command's options, so that only this command loads the simulator.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from worldline.base import env_os, errors, grammar
from worldline.sim import campaign, shrinker
from worldline.sim import suite as suites
from worldline.sim.suite import Suite
from worldline.terminal import command_session, output, suggest
from worldline.terminal.command_session import CommandSession

SEEDS_DEFAULT = 100
NO_GUARDS = "guards that can be switched off come with a suite: --suite MODULE"


class CampaignRequest(msgspec.Struct, frozen=True):
    """What was said on the command line."""

    target: str
    suite: str
    without: str
    profile: str
    first: int
    count: int
    jobs: int | None
    keep_going: bool
    every_cell: bool
    shrink: bool | None


class GuardRow(msgspec.Struct, frozen=True):
    guard: str
    does: str
    breaks: list[str]


def list_guards(desk: CommandSession, suite: str) -> int:
    if not suite:
        raise errors.BadInput(NO_GUARDS)
    guards = suites.load(suite).guards.named
    found = [GuardRow(name, guard.does, list(guard.breaks)) for name, guard in guards.items()]
    desk.out.many(found, {"GUARD": "guard", "DOES": "does", "BREAKS": "breaks"}, none="", key="guard")
    return 0


def run(desk: CommandSession, asked: CampaignRequest) -> int:
    job = campaign.CampaignJob(asked.target, asked.suite, asked.without, asked.profile)
    suite = campaign.load(job)
    _check_guard(job, suite)
    job.profile_of(0, suite.guards)  # a profile that makes no sense is said before anything starts
    env = env_os.OsEnv()
    began_us = env.monotonic_us()
    with command_session.quiet_logs(), desk.out.progress("simulating") as progress:
        ran = campaign.campaign(
            range(asked.first, asked.first + asked.count),
            suite,
            job=job,
            # The cores that this process may use, which in a container are fewer than the machine has.
            jobs=asked.jobs or len(os.sched_getaffinity(0)),
            keep_going=asked.keep_going,
            progress=progress,
        )
    seeds_per_s = round(ran.seeds * 1_000_000 / max(1, env.monotonic_us() - began_us), 2)
    _say(desk, ran, suite, job, asked=asked, seeds_per_s=seeds_per_s)
    return output.NEGATIVE if ran.failures or (asked.every_cell and ran.missed) else 0


def _check_guard(job: campaign.CampaignJob, suite: Suite) -> None:
    guards = suite.guards.named
    if job.without and job.without not in guards:
        meant = suggest.near(job.without, guards)
        there = f"`worldline simulate --suite {job.suite} --without list` names them{meant}" if guards else NO_GUARDS
        raise errors.BadInput(f"no guard {job.without!r}; {there}")


def _say(
    desk: CommandSession,
    ran: campaign.Campaign,
    suite: Suite,
    job: campaign.CampaignJob,
    *,
    asked: CampaignRequest,
    seeds_per_s: float,
) -> None:
    smaller = _smaller(desk, ran, suite, job, asked.shrink)
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
        if asked.every_cell:
            said["missed"] = [" x ".join(cell) for cell in ran.missed]
        desk.out.json(said)
        return
    shown = {each.seed: each for each in smaller}
    for failure in ran.failures:
        if failure.seed in shown:
            lines = shrinker.report(shown[failure.seed], job)
        else:
            again = shrinker.command(failure.seed, job)
            lines = [f"seed {failure.seed} breaks {failure.invariant}: {failure.what}", f"  again: {again}"]
        for line in lines:
            desk.out.line(line)
    if asked.every_cell:
        for boundary, fault in ran.missed:
            desk.out.line(f"never hit: {fault} at {boundary}")
    verdict = f"{len(ran.failures)} failed" if ran.failures else "all hold"
    desk.out.line(
        f"{grammar.count(ran.seeds, 'seed')}, {verdict}; {ran.hit} of {grammar.count(ran.of, 'cell')} "
        f"hit; {seeds_per_s}/s; trace {ran.trace[:16]}"
    )


def _smaller(
    desk: CommandSession, ran: campaign.Campaign, suite: Suite, job: campaign.CampaignJob, shrink: bool | None
) -> list[shrinker.Shrunk]:
    """The failures made smaller: the first for people, all when asked, none for programs that did not ask."""
    # Making one smaller takes many runs: without being asked, only the first, and only where a person waits for it.
    wanted = ran.failures if shrink else ran.failures[:1] if shrink is None and not desk.out.as_json else []
    found = []
    with command_session.quiet_logs():
        for failure in wanted:
            desk.out.note(f"seed {failure.seed} breaks {failure.invariant}; making it smaller")
            smaller = shrinker.shrink(failure.seed, suite, job=job)
            found += [smaller] if smaller is not None else []
    return found
