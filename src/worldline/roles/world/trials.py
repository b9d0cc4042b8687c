"""Worlds on trial: how a worker runs a world whose holder before did not release it.

Such a world is stepped over one input at a time, alone in the kernel's thread, and before each step the input is
written down (`worldline.layers.trial`). An input that as many processes as the crash budget says have died over is
settled without running user code. The trial is over when the inbox has been read empty, or after very many steps that
all ended in order: what processes die of further on is met by a later holder. Until then nothing is handed over to the
world, so that whatever a process dies of is in the inbox for the next.

A process that dies in such a step may be restoring other worlds meanwhile, and the death counts as one of their
restores too. So a world with a restore death is restored while no such step is made, and no other such restore: its
next restore death is its own. `alone` is for one of them at a time.

A step that does not end in order though its process lives, because it was interrupted or because memory ran out, counts
the same, also when the world was not on trial.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Literal

from worldline.base import env as envs
from worldline.base import probes
from worldline.codec import digest
from worldline.keys import inbox as inbox_keys
from worldline.layers import commit
from worldline.layers import trial as trials
from worldline.model import step
from worldline.roles import telemetry
from worldline.roles.world.held_world import HeldWorld
from worldline.store import kv, transact

log = logging.getLogger("worldline.worker")

How = Literal["died", "hung", "memory"]


class Trials:
    def __init__(
        self, engine: kv.Engine, env: envs.Env, *, budget: int, telemetry: telemetry.Telemetry = telemetry.NOTHING
    ) -> None:
        self._engine = engine
        self._env = env
        self.budget = budget
        self.alone = asyncio.Lock()
        self._telemetry = telemetry

    async def restored(self, held: HeldWorld) -> None:
        """The world is back in memory, and on trial if its holder before did not release it."""
        if held.lease.trial is None:
            return
        probes.hit("trial.taken-over")
        batch = kv.Batch()
        after = trials.restored(batch, held.lease, held.lease.trial)
        await self._commit(held, batch)
        held.begin_trial(after)

    async def mark(self, held: HeldWorld, given: step.Input) -> str:
        """Write down the input of the next step. Returns why it must not reach user code, if it must not."""
        name = digest_of(given)
        known = held.trial
        same = known is not None and (known.step, known.input) == (held.head.step, name)
        if known is not None and same and known.step_deaths >= self.budget:
            probes.hit("trial.settled-unseen")
            why = reason(known.step_deaths)
            log.error("world %r: %s", held.name, why, extra=telemetry.about(held.at, step=held.head.step + 1))
            return why
        batch = kv.Batch()
        marked = trials.mark(batch, held.lease, known, step=held.head.step, given=name)
        if marked != known:
            await self._commit(held, batch)
            held.tried(marked)
        return ""

    async def hold_against(self, held: HeldWorld, given: step.Input, how: How) -> None:
        """A step over this input did not end in order: its next step is on trial."""
        probes.hit("trial.held-against")
        batch = kv.Batch()
        after = trials.hold_against(batch, held.lease, held.trial, step=held.head.step, given=digest_of(given))
        await self._commit(held, batch)
        held.tried(after)
        self._telemetry.tell(telemetry.StepDied(held.at, how, after.step_deaths))

    async def _commit(self, held: HeldWorld, batch: kv.Batch) -> None:
        [outcome] = await transact.commit(self._engine, self._env, batch)
        if isinstance(outcome, kv.Conflict):
            raise commit.lost(outcome, held.lease)


def digest_of(given: step.Input) -> bytes:
    """What an input is recognised by, whichever way it comes."""
    return given.raw_digest if given.item is None else digest.sha256(inbox_keys.ITEM.pack(given.item))


def reason(deaths: int) -> str:
    return (
        f"{deaths} times in a row the process died, hung or ran out of memory in the step over it, "
        "so it was settled without running any code"
    )
