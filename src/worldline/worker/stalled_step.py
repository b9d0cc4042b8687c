"""A step that does not return, and what its worker does about it.

There is one kernel thread, so while a handler or a workflow of one world does not return, no other world of the worker
can make a step. After the TTL of its lease, the worker drops all others, without saving them, and says with its
heartbeat that it is to be given none (`draining`), so that other workers run them. It keeps the lease of the one world
that does not return, and continues to renew it: any worker that took it would hang as well, and with it all the worlds
that it has just been given. So one such world costs one worker, and not one after the other.

If the step returns after all, it is committed, and the worker takes worlds again. If not, it is given up after its
time, which counts against its input (`worldline.worker.crash_trials`). A restore or a save is not given up: if
one never returns, a person must end the process.
"""

from __future__ import annotations

import contextlib

import msgspec

from worldline.base import env as envs
from worldline.base import errors
from worldline.codec import printable
from worldline.layers import leases
from worldline.model import ids
from worldline.runtime import lease_calls as world_lease
from worldline.store import kv
from worldline.worker.cycle import Cycle
from worldline.worker.kernel_thread import Doing, KernelThread
from worldline.worker.world_refusals import Refusals
from worldline.worker.world_register import Holdings
from worldline.worker.world_search import Searcher
from worldline.worker.world_taking import Taker

WHY = "a handler or workflow of it does not return, and holds up its worker; the step is given up after its time"


log = printable.logger("worldline.worker")


class Stall(msgspec.Struct):
    """A call in the kernel's thread that has taken longer than a lease lives."""

    at: ids.Address | None
    since_us: int
    turns: int = 0
    drained: bool = False  # by us: whatever a person has said stays
    told: bool = False

    def age_ms(self, now_us: int) -> int:
        return (now_us - self.since_us) // 1000


class Stalls:
    """Looks, with every turn of a worker, for a step that does not return."""

    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        worker: ids.WorkerId,
        kernel: KernelThread,
        cycle: Cycle,
        *,
        ttl_us: int,
        holdings: Holdings,
        refusals: Refusals,
        taker: Taker,
        searcher: Searcher,
    ) -> None:
        self._engine = engine
        self._env = env
        self._worker = worker
        self._kernel = kernel
        self._cycle = cycle
        self._ttl_us = ttl_us
        self._holdings = holdings
        self._refusals = refusals
        self._taker = taker
        self._searcher = searcher
        self._stall: Stall | None = None

    async def stalled(self, now_us: int) -> bool:
        """Whether a step does not return. Then nothing else can be run here: all other worlds are released."""
        known, doing = self._stall, self._kernel.doing
        # In every turn of every worker, so the usual answer costs one comparison.
        if known is None and (doing is None or now_us - doing.since_us <= self._ttl_us):
            return False
        found = _find(doing, known, now_us=now_us, ttl_us=self._ttl_us)
        if found is None:
            if known is not None:
                await self._end(known)
            return False
        stall = known or found
        if known is None:
            self._stall = found
            if found.at is not None:
                held = self._holdings.peek(found.at)
                name = "" if held is None else held.name
                self._refusals.refuse(found.at, "hung", WHY, lasting=True, keep=True, name=name)
            log.error("a step has not returned for %d ms: letting go of all other worlds", found.age_ms(now_us))
        self._holdings.stall(stalled=True)
        await self._drain(stall)
        for held in [held for held in self._holdings.all if held.at != found.at]:
            handed = self._cycle.abandon(held.at) if held.busy else []
            if handed is not None or stall.turns > 1:  # a commit under way is given a moment
                self._holdings.drop(held, handed or ())
        for at in [at for at in self._taker.waiting if at != found.at]:
            self._holdings.cancel_taking(at)
        # `drop` keeps the lease: without this, no other worker could run these worlds.
        await self._searcher.not_in_memory()
        return True

    async def _drain(self, stall: Stall) -> None:
        """Say that this worker is to be given no worlds. Called with every turn while it lasts."""
        stall.turns += 1
        if stall.told:
            return
        read = await self._engine.read(leases.get_heartbeat(self._worker))
        life = leases.decode_heartbeat(self._worker, read.value(0))
        if life is not None and not life.sign.draining:
            await world_lease.drain(self._engine, self._env, self._worker, draining=True)
            stall.drained = True
        # Last: what fails before this is tried again with the next turn.
        stall.told = True

    async def _end(self, stall: Stall) -> None:
        """The step has returned: take worlds again."""
        if stall.drained:
            with contextlib.suppress(errors.NotFound):  # the next heartbeat is a new one
                await world_lease.drain(self._engine, self._env, self._worker, draining=False)
        if stall.at is not None:
            self._refusals.forgive(stall.at)
        self._stall = None
        self._holdings.stall(stalled=False)
        self._searcher.scan_soon()


def _find(doing: Doing | None, known: Stall | None, *, now_us: int, ttl_us: int) -> Stall | None:
    """The stall under way: the one that is known, or a new one."""
    if doing is None:
        return None
    if known is not None and (known.at, known.since_us) == (doing.at, doing.since_us):
        return known
    return Stall(doing.at, doing.since_us) if now_us - doing.since_us > ttl_us else None
