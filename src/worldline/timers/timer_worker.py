"""The timer worker: finds timers that are due and lets them fire.

Firing is one commit: the timer is settled and its firing is in the world's inbox, or neither. A world held in this
process gets the firing with its next cycle instead, which settles the timer in the step that takes it. Nothing fires
before its time on the store's clock; ties fire in the order (time, world, intent).

A timer of a world that another process holds is left to the timer worker there, if it has one and its worker lives, for
`GRACE_US`: two that fire one timer at once would only spoil each other's commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from worldline.base import env as envs
from worldline.base import errors, limits
from worldline.codec import printable
from worldline.layers import inbox as inboxes
from worldline.layers import leases, ready, worlds
from worldline.layers import work as works
from worldline.model import ids, inbox
from worldline.model import world_records as world_model
from worldline.model.settings import TimerSettings
from worldline.model.work import WorkKind
from worldline.runtime import facts as telemetry
from worldline.runtime import placement, queue_names, wakeup
from worldline.runtime.universes import look_times as looks
from worldline.runtime.universes.served_universes import Universes
from worldline.store import kv, transact
from worldline.worker import step_contents
from worldline.worker.held_world import HeldWorld
from worldline.worker.step_run import StepsDone
from worldline.worker.waiting_input import WaitingInput
from worldline.worker.world_worker import WorldWorker

log = printable.logger("worldline.timers")

GRACE_US = 1_000_000  # past its time, before a timer is fired past a living holder that should have done it
ELSEWHERE_US = 250_000  # how long it is taken for granted that the holder of a world has not changed
UNIVERSES_AT_ONCE = 1_000  # of many, looked at in one read
AHEAD = 8  # pointers read at once, so that timers of others are not looked at one by one
NEVER_US = 2**62
FIRE_BYTES = 1_024  # about what a firing takes in a batch, besides its record before and after
FIRE_BYTES_MAX = limits.BATCH_BYTES_MAX // 4
DAMAGED_US = 5_000_000  # how long a timer that cannot be read is left alone before it is looked at again
CLOSED_PAUSE_US = 5_000_000  # how long a timer of an archived world is left alone before it is looked at again


class TimerWorker:
    """The role: which universe has timers to fire, and when to look again."""

    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        universes: Universes,
        *,
        settings: TimerSettings,
        worker: ids.WorkerId,
        telemetry: telemetry.Telemetry = telemetry.NOTHING,
    ) -> None:
        self._engine = engine
        self._env = env
        self._universes = universes
        self._settings = settings
        self._worker = worker
        self._telemetry = telemetry
        self._local: WorldWorker | None = None
        one = universes.one
        prefixes = [] if one is None else [works.next_range(one, queue=queue_names.TIMER_QUEUE).begin]
        self._watch = wakeup.Wakeup(engine, env, prefixes)
        self._looks = looks.Looks(env, scan_us=settings.scan_ms * 1000)
        self._active: dict[ids.UniverseId, UniverseTimers] = {} if one is None else {one: self._timers_of(one)}
        self._fired = 0  # in universes that are not active any more
        universes.on_due.append(self._touched)
        universes.on_gone.append(self._gone)

    def _timers_of(self, universe: ids.UniverseId) -> UniverseTimers:
        return UniverseTimers(
            self._engine,
            self._env,
            universe,
            settings=self._settings,
            worker=self._worker,
            watch=self._watch,
            looks=self._looks,
            local=self._local,
            telemetry=self._telemetry,
        )

    @property
    def fired(self) -> int:
        return self._fired + sum(each.fired for each in self._active.values())

    def attach(self, local: WorldWorker) -> None:
        self._local = local
        for each in self._active.values():
            each.attach(local)
        local.on_act.append(self._on_act)

    def wake(self) -> None:
        self._watch.wake()

    def _touched(self, universe: ids.UniverseId) -> None:
        """A timer may be due there, now or soon."""
        self._looks.soon(universe)
        self._watch.wake()

    def _gone(self, universe: ids.UniverseId) -> None:
        self._looks.forget(universe)
        self._forget(universe)

    def _forget(self, universe: ids.UniverseId) -> None:
        gone = self._active.pop(universe, None)
        self._fired += 0 if gone is None else gone.fired

    def _on_act(self, hosted: HeldWorld, done: StepsDone, built: step_contents.Built) -> None:
        """A timer set in this process that is due before all we know of: do not oversleep it."""
        del built
        for wanted in done.wanted.values():
            if wanted.kind is WorkKind.TIMER:
                known = self._active.get(hosted.at.universe)
                # One that is due after the next known timer is found by the look at that one.
                if known is None or known.is_before(wanted.due_us):
                    self._touched(hosted.at.universe)

    async def tick(self) -> None:
        """One turn: fire what is due, or rest until the next timer."""
        self._watch.clear()
        one = self._universes.one
        if one is not None:
            rest_us = await self._active[one].turn()
        else:
            await self._look()
            rest_us = self._looks.rest_us()
        if rest_us > 0:
            await self._watch.rest(max(1, rest_us // 1000))

    async def _look(self) -> None:
        """Fire what is due in the universes that may have something. One without a timer before the next scan is left
        to the scan.
        """
        chosen = self._looks.take_due()
        try:
            for universe in await self._with_timers(chosen):
                timers = self._active.get(universe) or self._timers_of(universe)
                self._active[universe] = timers
                rest_us = await timers.turn()
                self._looks.looked(universe, rest_us=rest_us)
                if rest_us >= self._settings.scan_ms * 1000 and not timers.is_firing:
                    self._forget(universe)
        except BaseException:
            for universe in chosen:
                self._looks.soon(universe)
            raise

    async def _with_timers(self, chosen: Sequence[ids.UniverseId]) -> list[ids.UniverseId]:
        """Those of these universes that have a timer before the next scan, or had one just now."""
        found: list[ids.UniverseId] = []
        for start in range(0, len(chosen), UNIVERSES_AT_ONCE):
            part = chosen[start : start + UNIVERSES_AT_ONCE]
            read = await self._engine.read(*(works.next_range(each, queue=queue_names.TIMER_QUEUE) for each in part))
            self._watch.looked(read.seen)
            until_us = read.time_us + self._settings.scan_ms * 1000
            for index, universe in enumerate(part):
                pointers = [each.pointer for each in works.decode_due(universe, read.page(index))]
                if universe in self._active or any(each.due_us <= until_us for each in pointers):
                    found.append(universe)
        return found

    async def close(self) -> None:
        await self._watch.close()
        self._active.clear()


class UniverseTimers:
    """The timers of one universe."""

    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        universe: ids.UniverseId,
        *,
        settings: TimerSettings,
        worker: ids.WorkerId,
        watch: wakeup.Wakeup,
        looks: looks.Looks,
        local: WorldWorker | None,
        telemetry: telemetry.Telemetry,
    ) -> None:
        self._engine = engine
        self._env = env
        self._universe = universe
        self._settings = settings
        self._worker = worker
        self._watch = watch
        self._looks = looks
        self._local = local
        self._telemetry = telemetry
        self._firing: dict[ids.IntentId, ids.Address] = {}  # handed over to a world here and not yet journaled
        self._elsewhere: dict[ids.Address, int] = {}  # worlds whose holders fire their timers, and until when we know
        self._damaged: dict[ids.IntentId, int] = {}  # cannot be read, and until when they are left alone
        self._left = 0  # timers of those that were due at the last look
        self._next_us = NEVER_US
        self.fired = 0

    def attach(self, local: WorldWorker) -> None:
        self._local = local

    @property
    def is_firing(self) -> bool:
        return bool(self._firing)

    def is_before(self, due_us: int) -> bool:
        """Whether this is before all we know of; from now on it is known."""
        before = due_us < self._next_us
        self._next_us = min(due_us, self._next_us)
        return before

    async def turn(self) -> int:
        """Fire what is due. Returns how long nothing is: 0 if there may be more now."""
        count_max = AHEAD + len(self._firing) + self._left + len(self._damaged)
        read = await self._engine.read(
            works.next_range(self._universe, queue=queue_names.TIMER_QUEUE, count_max=count_max),
        )
        self._watch.looked(read.seen)
        ours_us = self._env.monotonic_us()
        self._elsewhere = {at: until_us for at, until_us in self._elsewhere.items() if until_us > ours_us}
        self._damaged = {intent: until_us for intent, until_us in self._damaged.items() if until_us > ours_us}
        found = [each.pointer for each in works.decode_due(self._universe, read.page(0))]
        found = [each for each in found if each.intent not in self._firing and each.intent not in self._damaged]
        others = [each for each in found if not self._is_left(each.at, each.due_us, read.time_us)]
        self._left = len(found) - len(others)
        self._next_us = others[0].due_us if others else NEVER_US
        if self._next_us <= read.time_us:
            await self._fire_due(read.time_us)
            return 0
        if not others and read.page(0).more:
            return 0
        rest_us = min(self._settings.scan_ms * 1000, max(1_000, self._next_us - read.time_us))
        if self._left:  # still there: their holders may be gone by the time that this is asked again
            rest_us = min(rest_us, ELSEWHERE_US)
        return rest_us

    def _is_left(self, at: ids.Address, due_us: int, now_us: int) -> bool:
        """Whether a timer of this world is due and left to the world's holder."""
        return at in self._elsewhere and due_us <= now_us < due_us + GRACE_US

    async def _fire_due(self, now_us: int) -> None:
        """Fire what is due and not left to others. Timers of one world go one way at a time, in their order."""
        count_max = self._settings.batch + len(self._firing) + self._left + len(self._damaged)
        read = await self._engine.read(
            works.due_range(self._universe, queue=queue_names.TIMER_QUEUE, now_us=now_us, count_max=count_max)
        )
        under_way = dict.fromkeys(self._firing.values())  # worlds here that were given some, maybe without success
        found = [
            each
            for each in works.decode_due(self._universe, read.page(0))
            if each.pointer.intent not in self._firing
            and each.pointer.intent not in self._damaged
            and not self._is_left(each.pointer.at, each.pointer.due_us, now_us)
        ]
        if not found:
            return
        authorities = await self._engine.read(
            *(works.get(each.pointer.at, each.pointer.intent) for each in found),
        )
        remote: list[works.Open] = []
        garbage: list[kv.Batch] = []
        for index, each in enumerate(found):
            try:
                timer = works.decode(each.pointer.at, each.pointer.intent, authorities.value(index))
            except errors.Corrupt as error:  # the others fire all the same
                self._leave_alone(each.pointer.intent, error)
                continue
            if timer is None or not works.matches(each, timer):
                batch = kv.Batch()
                works.discard(batch, each, timer)
                garbage.append(batch)
            elif not self._hand_over(timer, authorities.time_us) and timer.at not in under_way:
                remote.append(timer)
        await transact.commit(self._engine, self._env, *garbage)
        await self._find_elsewhere(remote, authorities.time_us)
        remote = [timer for timer in remote if not self._is_left(timer.at, timer.work.due_us, now_us)]
        if remote:
            await self._fire_remote(remote, authorities.time_us)
            self.fired += len(remote)

    async def _find_elsewhere(self, timers: list[works.Open], now_us: int) -> None:
        """Which of these worlds are held by living workers beside which timers are fired. Known for a short while."""
        # Past the grace, timers are fired whichever worker holds the world.
        young = [timer.at for timer in timers if now_us < timer.work.due_us + GRACE_US]
        addresses = list(dict.fromkeys(young))
        if not addresses:
            return
        read = await self._engine.read(*(leases.get_holder(at) for at in addresses))
        held = {at: leases.decode_holder(read.value(index)) for index, at in enumerate(addresses)}
        workers = list(dict.fromkeys(ids.WorkerId(holder.worker) for holder in held.values() if holder is not None))
        workers = [worker for worker in workers if worker != self._worker]
        if not workers:
            return
        read = await self._engine.read(*(leases.get_heartbeat(worker) for worker in workers))
        lives = [leases.decode_heartbeat(worker, read.value(index)) for index, worker in enumerate(workers)]
        fires = [
            life.sign.incarnation
            for life in lives
            if life is not None and life.alive(read.time_us) and placement.TIMERS in life.sign.labels
        ]
        until_us = self._env.monotonic_us() + ELSEWHERE_US
        for at, holder in held.items():
            if holder is not None and holder.incarnation in fires:
                self._elsewhere[at] = until_us

    def _leave_alone(self, intent: ids.IntentId, error: errors.Corrupt) -> None:
        self._damaged[intent] = self._env.monotonic_us() + DAMAGED_US
        log.warning("timer %s cannot fire: %s", intent.hex(), error)

    def _hand_over(self, timer: works.Open, now_us: int) -> bool:
        if self._local is None:
            return False
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        fired = inbox.TimerFired(timer.intent, timer.work.due_us, timer.work.correlation)
        if not self._local.hand_over(timer.at, WaitingInput(fired, b"", done=done, claim=timer)):  # type: ignore[arg-type]
            return False
        # So that the next look neither hands it over again nor fires it by the inbox.
        self._firing[timer.intent] = timer.at
        self.fired += 1
        done.add_done_callback(lambda each: self._journaled(timer, now_us, each))
        return True

    def _journaled(self, timer: works.Open, now_us: int, done: asyncio.Future[object]) -> None:
        self._firing.pop(timer.intent, None)
        if done.cancelled() or done.exception() is not None:
            self._looks.soon(self._universe)  # the world left; the timer is still due
            self._watch.wake()
        else:
            self._tell(timer, now_us)

    def _tell(self, timer: works.Open, now_us: int) -> None:
        self._telemetry.tell(telemetry.Fired(timer, max(0, now_us - timer.work.due_us), self._env.wall_us()))

    async def _fire_remote(self, timers: list[works.Open], now_us: int) -> None:
        """Fire timers of worlds that are not held here: their work is closed, and their inboxes get them.

        Those of one world are one commit: if its answer is lost and it is made again, no later timer is there before.
        """
        by_world: dict[ids.Address, list[works.Open]] = {}
        for timer in timers:
            by_world.setdefault(timer.at, []).append(timer)
        reads = await self._engine.read(*(worlds.get(at) for at in by_world))
        batches: list[kv.Batch] = []
        firing: list[list[works.Open]] = []
        for index, (at, mine) in enumerate(by_world.items()):
            try:
                world = worlds.find(at, reads.value(index))
            except errors.Corrupt as error:  # the timers of others fire all the same
                for timer in mine:
                    self._leave_alone(timer.intent, error)
                continue
            if world is not None and world.meta.status in world_model.TAKES_INPUT:
                batches.append(kv.Batch())
                firing.append(self._fire(batches[-1], world, mine, now_us))
            else:
                for timer in mine:
                    batches.append(kv.Batch())
                    firing.append([])
                    if world is None:
                        works.close_gone(batches[-1], timer)
                    else:
                        works.move_due(batches[-1], timer, now_us=now_us, due_us=now_us + CLOSED_PAUSE_US)
        outcomes = await transact.commit(self._engine, self._env, *batches)
        for fired, outcome in zip(firing, outcomes, strict=True):
            if isinstance(outcome, kv.Ok):
                for timer in fired:
                    self._tell(timer, now_us)

    def _fire(
        self, batch: kv.Batch, world: worlds.WorldRecord, timers: list[works.Open], now_us: int
    ) -> list[works.Open]:
        """Fire timers of one world, as many as a batch should hold. The others are still due, and follow."""
        # The world may be archived between the read and the commit.
        worlds.expect_open(batch, world)
        size = 0
        fired_now: list[works.Open] = []
        for timer in timers:
            if size > FIRE_BYTES_MAX:
                break
            token = ids.Token(envs.new_id(self._env))
            fired = works.fire(batch, timer, token=token, worker=self._worker, now_us=now_us)
            inboxes.enqueue_once(batch, timer.at, fired)
            fired_now.append(timer)
            size += 2 * len(timer.raw) + FIRE_BYTES
        ready.leave(batch, world.at, priority=ready.NORMAL)
        return fired_now
