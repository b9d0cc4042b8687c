"""Finding worlds that want to be run: by hints, by their holders' death, and by looking through all of them.

Three nets, one under the other. A producer leaves a ready hint, found at once. A worker that dies leaves its worlds
behind: they are freed, what its process had claimed is due again, and those with something unread get a hint. And
because hints may be lost, all inboxes are looked into, a page of worlds at a time, so slowly that it costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from worldline.base import env as envs
from worldline.base import errors
from worldline.layers import inbox as inboxes
from worldline.layers import leases, ready, worlds
from worldline.model import ids
from worldline.roles import committing, holding
from worldline.roles.cycling import Clock
from worldline.roles.hosted import Hosted
from worldline.store import kv, transact

if TYPE_CHECKING:
    from worldline.roles.world_worker import WorldWorker

T = TypeVar("T")

PAGE = 1_000
HOLDS_AT_ONCE = 16


class Finder:
    """One worker's searches. They run beside its cycles, one at a time."""

    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        universe: ids.UniverseId,
        *,
        clock: Clock,
        is_dead: Callable[[ids.WorkerId], bool],
        worker: WorldWorker,
    ) -> None:
        self._engine = engine
        self._env = env
        self._universe = universe
        self._clock = clock
        self._is_dead = is_dead
        self._worker = worker
        self._swept: ids.WorldId | None = None  # where the next page of all worlds begins

    async def by_hints(self) -> None:
        """Take the worlds that hints say are ready. Hints of worlds that others hold stay where they are."""
        after: tuple[ids.Address, int] | None = None
        while True:
            read = await self._engine.read(ready.read_range(self._universe, after=after, count_max=PAGE))
            self._clock.set(read.time_us)
            found = ready.decode(self._universe, read.page(0))
            hints = {at: (priority, raw) for at, priority, raw in reversed(found)}
            for hosted in await self._take(list(hints)):
                hosted.hint = hints[hosted.at]
                self._worker.look(hosted)
            if not read.page(0).more:
                return
            after = (found[-1][0], found[-1][1])

    async def _take(self, addresses: Sequence[ids.Address]) -> list[Hosted]:
        """Those of these worlds that are or can be held here."""
        held = [hosted for at in addresses if (hosted := self._worker.peek(at)) is not None]
        others = [at for at in addresses if self._worker.peek(at) is None]
        read = await self._engine.read(*(worlds.get(at) for at in others))
        found = [worlds.find(at, read.value(index)) for index, at in enumerate(others)]
        wanted = [world.at for world in found if world is not None and self._worker.runs(world)]
        taken = await each(wanted, self._worker.try_hold, at_once=HOLDS_AT_ONCE)
        return held + [hosted for hosted in taken if hosted is not None]

    async def sweep(self) -> None:
        """Look into the inboxes of the next page of worlds, for hints that were lost."""
        read = await self._engine.read(worlds.list_range(self._universe, after=self._swept, count_max=PAGE))
        listed = worlds.listed(self._universe, read.page(0))
        self._swept = listed[-1][0].world if read.page(0).more else None
        others = [at for at, _ in listed if self._worker.peek(at) is None]
        waiting = await self._with_unread(others)
        for hosted in await self._take(waiting):
            self._worker.look(hosted)

    async def among_held(self, held: Sequence[Hosted]) -> list[Hosted]:
        """Look into the inboxes of worlds held here. Returns those that are not ours any more."""
        gone: list[Hosted] = []
        for start in range(0, len(held), PAGE):
            part = held[start : start + PAGE]
            read = await self._engine.read(
                *(leases.reads(hosted.at)[0] for hosted in part),
                *(inboxes.read_range(hosted.at, count_max=1) for hosted in part),
            )
            for index, hosted in enumerate(part):
                if read.value(index) != hosted.lease.raw_epoch:
                    gone.append(hosted)
                elif read.page(len(part) + index).items:
                    self._worker.look(hosted)
        return gone

    async def of_the_dead(self) -> None:
        """Free the worlds of workers that are no more, and let it be known which of them have something to do."""
        worker: ids.WorkerId | None = None
        while True:
            read = await self._engine.read(leases.workers_range(after=worker))
            found = leases.decode_worker(read.page(0))
            if found is None:
                return
            worker, life = found
            if life is None or worker == self._worker.worker:
                continue
            proven = self._is_dead(worker)
            if proven or not life.alive(read.time_us):
                await self._free(life, proven=proven)

    async def _free(self, life: leases.Life, *, proven: bool) -> None:
        after: ids.Address | None = None
        strangers = False
        while True:
            read = await self._engine.read(leases.held_range(life.worker, after=after, count_max=PAGE))
            found = leases.decode_held(life.worker, read.page(0))
            ours = {at: epoch for at, epoch in found if at.universe == self._universe}
            strangers = strangers or len(ours) < len(found)
            if proven:
                await each(list(ours), self._take_back, at_once=HOLDS_AT_ONCE)
            await self._release(life, ours)
            if not read.page(0).more:
                break
            after = found[-1][0]
        if not strangers:
            batch = kv.Batch()
            leases.goodbye(batch, life)
            await transact.commit(self._engine, self._env, batch)

    async def _take_back(self, at: ids.Address) -> int:
        return await holding.take_back_claims(self._engine, self._env, at, self._is_dead)

    async def _release(self, life: leases.Life, held: dict[ids.Address, int]) -> None:
        """End leases on behalf of a worker that cannot. Its life sign is expected to be the one that has run out."""
        addresses = list(held)
        waiting = dict.fromkeys(await self._with_unread(addresses))
        for start in range(0, len(addresses), HOLDS_AT_ONCE):
            part = addresses[start : start + HOLDS_AT_ONCE]
            read = await self._engine.read(
                *(get for at in part for get in leases.reads(at)),
                *(ready.get(at, priority=committing.READY_PRIORITY) for at in part),
            )
            hints: list[kv.Batch] = []
            ends: list[kv.Batch] = []
            for index, at in enumerate(part):
                state = leases.decode(at, *(read.value(3 * index + offset) for offset in range(3)))
                ends.append(kv.Batch())
                leases.release_for(ends[-1], state, life, epoch=held[at])
                if at in waiting and read.value(3 * len(part) + index) is None:
                    hints.append(kv.Batch())
                    ready.leave(
                        hints[-1], at, priority=committing.READY_PRIORITY, stamp=committing.any_stamp(self._env)
                    )
            await transact.commit(self._engine, self._env, *hints, *ends)

    async def _with_unread(self, addresses: Sequence[ids.Address]) -> list[ids.Address]:
        if not addresses:
            return []
        read = await self._engine.read(*(inboxes.read_range(at, count_max=1) for at in addresses))
        return [at for index, at in enumerate(addresses) if read.page(index).items]


async def each(
    items: Sequence[ids.Address], do: Callable[[ids.Address], Awaitable[T]], *, at_once: int
) -> list[T]:  # fmt: skip
    """Do something for each, a few at once. One that fails does not keep the others from being done."""
    results: list[T | BaseException] = []
    for start in range(0, len(items), at_once):
        part = items[start : start + at_once]
        results += await asyncio.gather(*(do(item) for item in part), return_exceptions=True)
    failed = [result for result in results if isinstance(result, BaseException)]
    for error in failed:
        if not isinstance(error, errors.Error):
            raise error
    if failed:
        raise failed[0]
    return [result for result in results if not isinstance(result, BaseException)]
