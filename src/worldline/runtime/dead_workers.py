"""Freeing what dead workers have left: their worlds, what their processes had claimed, and their own records.

Any process may do this, any number at once: each act is a commit of its own that expects the dead worker's heartbeat to
be the one that has expired. A world with something unread gets a hint, so that live workers look at it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from worldline.base import env as envs
from worldline.base import errors, probes
from worldline.codec import printable
from worldline.layers import inbox as inboxes
from worldline.layers import leases, ready, trial
from worldline.model import ids
from worldline.runtime import death_witness, worker_walk
from worldline.runtime import facts as telemetry
from worldline.runtime import lease_calls as world_lease
from worldline.store import kv, paging, transact

log = printable.logger("worldline.worker")

T = TypeVar("T")

PAGE = 1_000
AT_ONCE = 16


class Freer:
    """`serves`: whether worlds of a universe are this process's concern. Those of others are left alone."""

    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        serves: Callable[[ids.UniverseId], bool],
        others: death_witness.DeathWitness,
        telemetry: telemetry.Telemetry = telemetry.NOTHING,
    ) -> None:
        self._engine = engine
        self._env = env
        self._serves = serves
        self._others = others
        self._telemetry = telemetry

    async def of_the_dead(self, *, but: ids.WorkerId | None = None) -> int:
        """Free the worlds of dead workers, and leave hints for those that have something to do.

        Returns how many workers there were. `but`: the worker that asks, which is alive.
        """
        count = 0
        workers = worker_walk.WorkerWalk(self._engine)
        async for worker, sign in workers:
            life = self._others.look(sign)
            if life is None or worker == but:
                continue
            proven = self._others.is_dead(worker)
            if proven or not life.alive(workers.time_us):
                await self._free(life, proven=proven)
                count += 1
        return count

    async def _free(self, life: leases.HeartbeatRecord, *, proven: bool) -> None:
        strangers = gone = False
        worlds = 0
        async for page in paging.RangePages(self._engine, leases.held_range(life.worker, count_max=PAGE)):
            found = leases.decode_held(life.worker, page)
            ours = {at: epoch for at, epoch in found if self._serves(at.universe)}
            strangers = strangers or len(ours) < len(found)
            if proven:
                await each(list(ours), self._take_back, at_once=AT_ONCE)
            worlds += await self._release(life, ours)
        # The heartbeat stays while others need it: processes that serve those universes release their worlds by it.
        if not strangers:
            batch = kv.Batch()
            leases.goodbye(batch, life)
            gone = await transact.applied(self._engine, self._env, batch)
        if worlds or gone:
            self._telemetry.tell(telemetry.Reaped(worlds, gone))

    async def _take_back(self, at: ids.Address) -> int:
        return await world_lease.take_back_claims(self._engine, self._env, at, self._others.is_dead)

    async def _release(self, life: leases.HeartbeatRecord, held: dict[ids.Address, int]) -> int:
        """End leases on behalf of a worker that cannot. Its heartbeat is expected to be the one that has expired.

        Returns how many were ended by this process.
        """
        ended = 0
        addresses = list(held)
        waiting = dict.fromkeys(await with_unread(self._engine, addresses))
        for start in range(0, len(addresses), AT_ONCE):
            part = addresses[start : start + AT_ONCE]
            reads = (get for at in part for get in (*leases.reads(at), *trial.reads(at)))
            read = await self._engine.read(*reads)
            ends: list[kv.Batch] = []
            for index, at in enumerate(part):
                try:
                    state = leases.decode(at, *(read.value(5 * index + offset) for offset in range(3)))
                    known = trial.decode(at, *(read.value(5 * index + offset) for offset in (3, 4)))
                except errors.Corrupt as error:
                    log.warning("world %s cannot be freed: %s", at.world.hex(), error)
                    continue
                except errors.NotFound:
                    probes.hit("reap.world-deleted")
                    continue  # it is deleted, and has no lease; the janitor drops the record of it
                ends.append(kv.Batch())
                leases.release_for(ends[-1], state, life, epoch=held[at])
                if state.holder is not None and state.holder.worker == life.worker:
                    # Only a world that it holds still was left by its death; a later holder took the others.
                    trial.left_behind(ends[-1], known, epoch=state.epoch.number)
                if at in waiting:
                    ready.leave(ends[-1], at, priority=ready.NORMAL)
            outcomes = await transact.commit(self._engine, self._env, *ends)
            ended += sum(isinstance(outcome, kv.Ok) for outcome in outcomes)
        return ended


async def with_unread(engine: kv.Engine, addresses: Sequence[ids.Address]) -> list[ids.Address]:
    """Those of these worlds whose inboxes are not empty."""
    if not addresses:
        return []
    read = await engine.read(*(inboxes.read_range(at, count_max=1) for at in addresses))
    return [at for index, at in enumerate(addresses) if read.page(index).items]


async def each(items: Sequence[ids.Address], do: Callable[[ids.Address], Awaitable[T]], *, at_once: int) -> list[T]:
    """Do something for each, a few at once. One that fails does not keep the others from being done."""
    results: list[T | BaseException] = []
    for start in range(0, len(items), at_once):
        part = items[start : start + at_once]
        results += await asyncio.gather(*(do(item) for item in part), return_exceptions=True)
    failed = [result for result in results if isinstance(result, BaseException)]
    # A bug first: an expected loss must not hide it.
    for error in failed:
        if not isinstance(error, errors.Error):
            raise error
    if failed:
        raise failed[0]
    return [result for result in results if not isinstance(result, BaseException)]
