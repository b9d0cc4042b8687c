"""Quarantine: a world that processes die of while they restore it is paused for a while.

It ends by itself. The first lasts `quarantine_ms`, each one in a row twice as long, `quarantine_max_ms` at most; then
any worker that looks for worlds makes it active again, and its next restore is tried in a child process first. A
person's `resume` ends it at once, and deletes what was counted.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from worldline.base import env as envs
from worldline.base import errors, grammar, probes
from worldline.layers import leases, ready, trial, worlds
from worldline.model import ids
from worldline.model import leases as lease_model
from worldline.model.settings import WorkerSettings
from worldline.model.world_records import Status
from worldline.store import kv, transact

RESTORE_DEATHS_MIN = 2  # the first may be another world's: only from then on a world is restored alone
DOUBLINGS_MAX = 32


class DeathBudget(msgspec.Struct, frozen=True):
    """How many deaths a last attempt in a child process needs, and how long a quarantine lasts."""

    deaths_max: int
    first_us: int
    longest_us: int

    @property
    def restore_deaths_max(self) -> int:
        return max(self.deaths_max, RESTORE_DEATHS_MIN)

    def is_hopeless(self, crash_trial: lease_model.CrashTrial) -> bool:
        """Whether so many processes died while they read the world that there is no use in trying a child."""
        return crash_trial.restore_deaths >= 2 * self.restore_deaths_max

    def lasts_us(self, crash_trial: lease_model.CrashTrial) -> int:
        return min(self.longest_us, self.first_us << min(crash_trial.quarantines, DOUBLINGS_MAX))


def budget_of(settings: WorkerSettings) -> DeathBudget:
    return DeathBudget(settings.crash_budget, settings.quarantine_ms * 1000, settings.quarantine_max_ms * 1000)


class Quarantined(errors.Closed):
    """A world is paused for a while, because processes die while they restore it."""

    def __init__(self, name: str, crash_trial: lease_model.CrashTrial, *, now_us: int) -> None:
        self.deaths = crash_trial.restore_deaths
        super().__init__(
            f"world {name!r} is quarantined: {reason(crash_trial)}; {when(crash_trial, now_us=now_us)}, or at once by "
            f"`worldline resume {name}`; see `worldline why {name}`"
        )


def reason(crash_trial: lease_model.CrashTrial) -> str:
    dead = grammar.count(crash_trial.restore_deaths, "process")
    said = f"{dead} in a row died while they restored it{blamed(crash_trial)}"
    return (
        f"{said}, and so did a last attempt in a child process: {crash_trial.verdict}" if crash_trial.verdict else said
    )


def blamed(crash_trial: lease_model.CrashTrial) -> str:
    """The workers whose deaths are counted, for people."""
    named = list(dict.fromkeys(each.incarnation.hex()[-8:] for each in crash_trial.blamed))
    return f" (processes {', '.join(named)})" if named else ""


def when(crash_trial: lease_model.CrashTrial, *, now_us: int) -> str:
    return f"it is tried again in {max(0, crash_trial.until_us - now_us) // 1_000_000} s"


def begin(
    batch: kv.Batch,
    world: worlds.WorldRecord,
    crash_trial: lease_model.CrashTrial,
    budget: DeathBudget,
    *,
    now_us: int,
    verdict: str = "",
) -> Quarantined:
    """Part of a batch that takes the lease away, or gives it back. Returns what to say of it. The trial is put by the
    caller.
    """
    worlds.change(batch, world, status=Status.PAUSED)
    ready.leave(batch, world.at, priority=ready.NORMAL)  # a worker finds it by this when its time is over
    after = trial.quarantined(crash_trial, until_us=now_us + budget.lasts_us(crash_trial), verdict=verdict)
    trial.keep(batch, world.at, after)
    return Quarantined(world.meta.name, after, now_us=now_us)


async def end_due(
    engine: kv.Engine, env: envs.Env, paused: Sequence[worlds.WorldRecord], budget: DeathBudget
) -> list[ids.Address]:
    """Make those of these paused worlds active whose quarantine is over. Returns them."""
    read = await engine.read(
        *(request for each in paused for request in (trial.get(each.at), leases.reads(each.at)[0]))
    )
    ended: list[ids.Address] = []
    for index, world in enumerate(paused):
        raw = read.value(2 * index)
        found = trial.decode_trial(raw)
        if raw is None or not trial.is_over(found, now_us=read.time_us, longest_us=budget.longest_us):
            continue
        batch = kv.Batch()
        worlds.change(batch, world, status=Status.ACTIVE)
        # One more death, while the world is read, and it is quarantined again.
        trial.end_quarantine(batch, world.at, raw, restore_deaths=2 * budget.restore_deaths_max - 1)
        ready.leave(batch, world.at, priority=ready.NORMAL)
        if await transact.applied(engine, env, batch):  # else another worker, or a person, was first
            probes.hit("trial.quarantine-over")
            ended.append(world.at)
    return ended
