"""When a universe is collected, and how much at a time: the janitor's part of it.

The record of the last collection says when it began, so that any number of janitors collect no more often than one. A
universe that was never collected is, when it is old enough.
"""

from __future__ import annotations

from worldline.base import errors, grammar
from worldline.codec import printable
from worldline.features.collection import batches, mark_barrier
from worldline.features.collection.collector import CollectionPass, Overtaken
from worldline.features.collection.mark_phase import Plain, Unreadable
from worldline.features.erasure import scrub_job
from worldline.keys import universes as universe_keys
from worldline.layers import universes
from worldline.runtime import facts as telemetry
from worldline.runtime.janitor_job import JanitorContext, JanitorJob
from worldline.store import kv

log = printable.logger("worldline.janitor")

COLLECT_TURN_US = 50_000  # of work, before it rests


class CollectionJob(JanitorJob):
    """The collections of one janitor."""

    def __init__(self, context: JanitorContext) -> None:
        self._engine = context.engine
        self._env = context.env
        self._blobs = context.blobs
        self._universe = context.universe
        self._settings = context.settings
        self._telemetry = context.telemetry
        self._worker = context.worker
        self._is_dead = context.is_dead
        self._plain = Plain()
        self._run: CollectionPass | None = None
        self._began_us = 0

    async def turn(self) -> bool:
        """Some of a collection, if it is time for one. Returns whether there is no more to do now."""
        if self._run is None:
            if not await self._is_due():
                return True
            self._began_us = self._env.monotonic_us()
            self._run = CollectionPass(
                self._engine,
                self._env,
                self._blobs,
                self._universe,
                grace_ms=self._settings.collect_grace_ms,
                plain=self._plain,
                worker=self._worker,
                is_dead=self._is_dead,
            )
            # Of its own, because compaction and deletion wait for the end of a mark.
            self.rest_ms = self._settings.collect_rest_ms
        over = False
        try:
            over = await self._work(self._run)
        except errors.Error as error:
            self._failed(error)
            over = True
        if over:
            self._run = self.rest_ms = None
        return over

    async def close(self) -> None:
        """Leave no mark behind that others wait for."""
        if self._run is not None:
            await self._run.give_up()
            self._run = self.rest_ms = None

    async def _work(self, run: CollectionPass) -> bool:
        until_us = self._env.monotonic_us() + COLLECT_TURN_US
        while self._env.monotonic_us() < until_us:
            if await run.turn():
                self._tell(run)
                if run.report.swept.deleted.count and kv.can_scrub(self._engine):
                    await scrub_job.owe(self._engine, self._env)
                return True
        return False

    async def _is_due(self) -> bool:
        if not self._settings.collect_ms:
            return False
        read = await self._engine.read(*batches.reads(self._universe), universes.get_meta(self._universe))
        state = batches.decode(self._universe, read.value(0), read.value(1))
        if state.generation.marking and await mark_barrier.goes_on(self._engine, state, self._is_dead):
            return False
        meta = universe_keys.META.get(read.value(2))
        began_us = state.last.began_us if state.last is not None else 0 if meta is None else meta.created_us
        return read.time_us - began_us >= self._settings.collect_ms * 1000

    def _failed(self, error: errors.Error) -> None:
        """It is tried again in the next round."""
        why: telemetry.CollectTrouble = "store"
        if isinstance(error, Unreadable):
            why = "unreadable"
            log.error("nothing is collected, because what something refers to is not known: %s", error)
        elif isinstance(error, Overtaken):
            why = "overtaken"
            log.info("garbage collection: %s", error)
        else:
            log.warning("garbage collection: %s; it is tried again later", error)
        self._telemetry.tell(telemetry.CollectFailed(why, str(error)))

    def _tell(self, run: CollectionPass) -> None:
        report, swept = run.report, run.report.swept
        self._telemetry.tell(
            telemetry.GarbageCollected(
                report.worlds,
                report.marked,
                swept.unreferenced.count,
                swept.spared.count,
                swept.deleted.count,
                swept.deleted.bytes,
                swept.orphans.count,
                swept.orphans.bytes,
                self._env.monotonic_us() - self._began_us,
            )
        )
        if swept.held:
            log.info("garbage collection: nothing was deleted while a hold stands: %s", swept.held)
        elif swept.deleted.count or swept.orphans.count:
            log.info(
                "garbage collection: %s of %d bytes deleted, %s of lost uploads, %d condemned",
                grammar.count(swept.deleted.count, "blob"),
                swept.deleted.bytes,
                grammar.count(swept.orphans.count, "object"),
                swept.unreferenced.count,
            )
