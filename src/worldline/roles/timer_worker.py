"""The timer worker: finds timers that are due and lets them fire.

Firing is one commit: the timer is settled and its firing is in the world's inbox, or neither. A world held in this
process gets the firing with its next cycle instead, which settles the timer in the step that takes it. Nothing fires
before its time on the store's clock; ties are taken in the order (time, world, intent).
"""

from __future__ import annotations

import asyncio
import logging

from worldline.base import env as envs
from worldline.base import errors
from worldline.layers import inbox as inboxes
from worldline.layers import ready, worlds
from worldline.layers import work as works
from worldline.model import ids, inbox
from worldline.model import world as world_model
from worldline.model.settings import TimerSettings
from worldline.model.work import WorkKind
from worldline.roles import committing, telemetry, watching
from worldline.roles.hosted import Done, Handover, Hosted
from worldline.roles.world_worker import WorldWorker
from worldline.store import kv, transact

log = logging.getLogger("worldline.timers")

DAMAGED_REST_US = 250_000  # between looks, while the first timer that is due cannot be read
CLOSED_PAUSE_US = 5_000_000  # how long a timer of an archived world is left alone before it is looked at again


class TimerWorker:
    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        universe: ids.UniverseId,
        *,
        settings: TimerSettings,
        worker: ids.WorkerId,
        telemetry: telemetry.Telemetry = telemetry.NOTHING,
    ) -> None:
        self._engine = engine
        self._env = env
        self._universe = universe
        self._settings = settings
        self._worker = worker
        self._telemetry = telemetry
        self._local: WorldWorker | None = None
        prefix = works.next_range(universe, queue=committing.TIMER_QUEUE, shard=0).begin
        self._watch = watching.Watch(engine, [prefix])
        self._firing: dict[ids.IntentId, None] = {}  # handed over to a world here and not yet journaled
        self._damaged: dict[ids.IntentId, None] = {}  # cannot be read
        self._next_us = 2**62
        self.fired = 0

    def attach(self, local: WorldWorker) -> None:
        self._local = local
        local.on_act.append(self._on_act)

    def wake(self) -> None:
        self._watch.wake()

    def _on_act(self, hosted: Hosted, done: Done, built: committing.Built) -> None:
        """A timer set in this process that is due before all we know of: do not oversleep it."""
        for wanted in done.wanted.values():
            if wanted.kind is WorkKind.TIMER and wanted.due_us < self._next_us:
                self._next_us = wanted.due_us
                self._watch.wake()
        del hosted, built

    async def tick(self) -> None:
        """One turn: fire what is due, or rest until the next timer."""
        self._watch.clear()
        read = await self._engine.read(
            works.next_range(self._universe, queue=committing.TIMER_QUEUE, shard=0),
        )
        self._watch.looked(read.seen)
        found = works.decode_due(self._universe, read.page(0))
        self._next_us = found[0].pointer.due_us if found else 2**62
        if self._next_us <= read.time_us and await self._fire_due(read.time_us):
            return
        rest_us = min(self._settings.scan_ms * 1000, max(1_000, self._next_us - read.time_us))
        if found and found[0].pointer.intent in self._firing:
            rest_us = 2_000  # it is on its way into its world; look again soon
        elif found and found[0].pointer.intent in self._damaged:
            rest_us = DAMAGED_REST_US
        await self._watch.rest(max(1, rest_us // 1000))

    async def _fire_due(self, now_us: int) -> int:
        read = await self._engine.read(
            works.due_range(
                self._universe, queue=committing.TIMER_QUEUE, shard=0, now_us=now_us, count_max=self._settings.batch
            )
        )
        found = works.decode_due(self._universe, read.page(0))
        found = [each for each in found if each.pointer.intent not in self._firing]
        if not found:
            return 0
        authorities = await self._engine.read(
            *(works.get(each.pointer.at, each.pointer.intent) for each in found),
        )
        remote: list[works.Open] = []
        garbage: list[kv.Batch] = []
        for index, each in enumerate(found):
            try:
                timer = works.decode(each.pointer.at, each.pointer.intent, authorities.value(index))
            except errors.Corrupt as error:  # the others fire all the same
                self._leave_alone(each, error)
                continue
            if timer is None or not works.matches(each, timer):
                batch = kv.Batch()
                works.discard(batch, each, timer)
                garbage.append(batch)
            elif not self._hand_over(timer, authorities.time_us):
                remote.append(timer)
        if garbage:
            await transact.commit(self._engine, self._env, *garbage)
        if remote:
            await self._fire_remote(remote, authorities.time_us)
        self.fired += len(found)
        return len([each for each in found if each.pointer.intent not in self._damaged])

    def _leave_alone(self, found: works.Found, error: errors.Corrupt) -> None:
        if found.pointer.intent not in self._damaged:
            self._damaged[found.pointer.intent] = None
            log.warning("timer %s cannot be read: %s", found.pointer.intent.hex(), error)

    def _hand_over(self, timer: works.Open, now_us: int) -> bool:
        if self._local is None:
            return False
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        fired = inbox.TimerFired(timer.intent, timer.work.due_us, timer.work.correlation)
        if not self._local.hand_over(timer.at, Handover(fired, b"", done=done, claim=timer)):  # type: ignore[arg-type]
            return False
        self._firing[timer.intent] = None
        done.add_done_callback(lambda each: self._journaled(timer, now_us, each))
        return True

    def _journaled(self, timer: works.Open, now_us: int, done: asyncio.Future[object]) -> None:
        self._firing.pop(timer.intent, None)
        if done.cancelled() or done.exception() is not None:
            self._watch.wake()  # the world left; the timer is still due
        else:
            self._tell(timer, now_us)

    def _tell(self, timer: works.Open, now_us: int) -> None:
        self._telemetry.tell(telemetry.Fired(timer, max(0, now_us - timer.work.due_us), self._env.wall_us()))

    async def _fire_remote(self, timers: list[works.Open], now_us: int) -> None:
        """Timers of worlds that are not held here: settled, and into their inboxes."""
        reads = await self._engine.read(
            *(worlds.get(timer.at) for timer in timers),
            *(ready.get(timer.at, priority=committing.READY_PRIORITY) for timer in timers),
        )
        batches = []
        firing: list[works.Open | None] = []
        for index, timer in enumerate(timers):
            try:
                world = worlds.find(timer.at, reads.value(index))
            except errors.Corrupt as error:
                log.warning("a timer of world %s cannot fire: %s", timer.at.world.hex(), error)
                self._damaged[timer.intent] = None
                continue
            batch = kv.Batch()
            if world is None:
                works.close_gone(batch, timer)
            elif world.meta.status not in world_model.TAKES_INPUT:
                works.move_due(batch, timer, now_us=now_us, due_us=now_us + CLOSED_PAUSE_US)
            else:
                token = ids.Token(envs.new_id(self._env))
                fired = works.fire(batch, timer, token=token, worker=self._worker, now_us=now_us)
                worlds.expect_open(batch, world)
                append = inboxes.enqueue_once(batch, timer.at, fired)
                hint = reads.value(len(timers) + index)
                ready.mark(batch, timer.at, priority=committing.READY_PRIORITY, seen=hint, append=append)
            batches.append(batch)
            firing.append(timer if world is not None and world.meta.status in world_model.TAKES_INPUT else None)
        outcomes = await transact.commit(self._engine, self._env, *batches) if batches else []
        for fired_timer, outcome in zip(firing, outcomes, strict=True):
            if fired_timer is not None and isinstance(outcome, kv.Ok):
                self._tell(fired_timer, now_us)

    async def close(self) -> None:
        await self._watch.close()
        self._firing.clear()
