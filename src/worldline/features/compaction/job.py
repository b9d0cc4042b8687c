"""When worlds are compacted: one after the other, beside their steps, in the process that holds them.

A world is looked at when it was saved, and when its lease was acquired. Most have too little to compact, which is known
without reading anything. Whatever goes wrong concerns the compaction alone: the world continues, and is looked at again
behind its next snapshot.
"""

from __future__ import annotations

import asyncio
import functools

from worldline.base import errors, grammar
from worldline.base.bounded_map import BoundedMap
from worldline.codec import printable
from worldline.features.compaction import compactor, segment_expiry
from worldline.features.compaction.universe_retention import Policies
from worldline.model import ids, journal
from worldline.model.snapshots import StateSnapshot
from worldline.runtime import facts as telemetry
from worldline.runtime.holder_job import HolderContext, HolderJob, JobWorld, SupersededSnapshots

log = printable.logger("worldline.compaction")

NAME = "compaction"  # of the task
WAITING_MAX = 4  # worlds; with more of them, compaction does not rest
KNOWN_MAX = 10_000  # worlds of which it is kept how far they are compacted


class Compactions(HolderJob):
    """Those of a worker."""

    def __init__(self, context: HolderContext) -> None:
        self._engine = context.engine
        self._env = context.env
        self._worker = context.worker
        self._telemetry = context.telemetry
        self.policies = Policies(context.engine, context.env, context.settings.worker, hosts=True)
        self._waiting: dict[ids.Address, JobWorld] = {}
        self._compacted: BoundedMap[ids.Address, int] = BoundedMap(KNOWN_MAX)  # up to which height, as far as known
        self._ends: BoundedMap[bytes, journal.Head] = BoundedMap(segment_expiry.ENDS_MAX)
        self._stopping = False
        self._one = asyncio.Lock()  # one compaction at a time, also of those that are wanted `now`

    @property
    def _is_due(self) -> bool:
        return bool(self._waiting) and not self._stopping

    def stop(self) -> None:
        self._stopping = True
        self._waiting.clear()

    def look(self, held: JobWorld) -> None:
        if self._may_have_enough(held):
            # A world that waits already keeps its place, with the newest of what is known of it.
            self._waiting[held.at] = held
            if self._is_due and not self._worker.tasks.is_running(NAME):
                self._worker.tasks.start(NAME, self._turn())

    async def superseded(self, at: ids.Address, taken: StateSnapshot) -> SupersededSnapshots:
        return await compactor.superseded(self._engine, self.policies, at, taken)

    def _may_have_enough(self, held: JobWorld) -> bool:
        """Whether to read what there is. It is also asked without the policy of the universe, which is read then."""
        policy = self.policies.recent(held.at.universe)
        above = held.baseline.height - self._compacted.get(held.at, 0)
        return policy is None or (policy.entries > 0 and above > policy.margin)

    async def _turn(self) -> None:
        """Compact what waits for it."""
        while self._is_due:
            held = self._waiting.pop(next(iter(self._waiting)))
            # It may have been lost while it waited for its turn.
            if not held.lost:
                await self._try(held)

    async def _try(self, held: JobWorld) -> None:
        try:
            await self.policies.learn(held.at.universe)
            # Asked again: the first answer may have been given without the policy, which is known now.
            if self._may_have_enough(held):
                await self.compact(held)
        except errors.Closed:
            pass  # it was stopped, or the world was released
        except (errors.Lost, errors.StoreError) as error:
            # Another holder, or a store that cannot be reached: that is no fault of the world, which is looked at again
            # later.
            log.info("world %s is not compacted now: %s", held.at.world.hex(), error, extra=telemetry.about(held.at))
        except errors.Error as error:
            self._failed(held, error)

    def _failed(self, held: JobWorld, error: errors.Error) -> None:
        log.error("world %s cannot be compacted: %s", held.at.world.hex(), error, extra=telemetry.about(held.at))
        self._telemetry.tell(telemetry.CompactFailed(held.at, str(error)))

    async def compact(self, held: JobWorld, *, now: bool = False) -> compactor.CompactionResult:
        """Compact one world that is held here: if there is enough, or `now`. One at a time."""
        async with self._one:
            return await self._compact(held, now=now)

    async def _compact(self, held: JobWorld, *, now: bool) -> compactor.CompactionResult:
        began_us = self._env.monotonic_us()
        done = await compactor.Compactor(
            self._engine,
            self._env,
            held.blobs,
            held.lease,
            policies=self.policies,
            compute=functools.partial(self._worker.compute, held.at),
            is_over=lambda: self._stopping or held.lost,
            is_late=lambda: len(self._waiting) > WAITING_MAX,
            ends=self._ends,
        ).run(now=now)
        self._remember(held.at, done.height)
        if done.segments or done.snapshots or done.expired:
            us = self._env.monotonic_us() - began_us
            self._telemetry.tell(
                telemetry.WorldCompacted(
                    held.at, done.segments, done.entries, done.frames, done.bytes, done.snapshots, us, done.expired
                )
            )
            log.info(
                "world %s: %s moved into %s, %s and %s dropped",
                held.at.world.hex(),
                grammar.count(done.entries, "entry"),
                grammar.count(done.segments, "segment"),
                grammar.count(done.snapshots, "snapshot"),
                grammar.count(done.expired, "entry"),
                extra=telemetry.about(held.at),
            )
        return done

    def _remember(self, at: ids.Address, height: int) -> None:
        self._compacted[at] = height
