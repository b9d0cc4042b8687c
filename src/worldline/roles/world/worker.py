"""The world worker: holds worlds under leases and runs the cycle over them.

A tick is short: renew the life sign, start a search for worlds that are ready, start a cycle over those held that have
something to do, or rest. Searches, cycles (`cycle`) and upkeep run beside it, so that none of them
keeps another from its turn.

Whatever goes wrong with one world concerns that world alone: it is refused here, with its reason, and its lease is
released (`worldline.roles.world.refusals`). Only what goes wrong with the worker itself ends the worker.

A world whose epoch moved is fenced: it is dropped at once and never written again under that epoch. The memory of a
world whose commit failed for any other reason is thrown away and restored; if its lease and head held, it stays here
meanwhile. The worker's life sign is one write for all its worlds; when it could not be renewed by its margin, for
whatever reason, the worker fences itself: it drops all of its worlds and asks for them anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from worldline.base import env as envs
from worldline.base import errors
from worldline.kernel.authoring.program import Program
from worldline.layers import blobs as blob_layer
from worldline.layers import leases, ready, worlds
from worldline.model import ids
from worldline.model.settings import WorkerSettings
from worldline.model.world import Status
from worldline.roles import hub, telemetry, wakeup
from worldline.roles.cluster import placement, reap
from worldline.roles.world import cycle as cycles
from worldline.roles.world import kernel_thread, losses, refusals, search, stalls, step_batch, take, upkeep
from worldline.roles.world import lease as world_lease
from worldline.roles.world.held_world import Done, Handover, Hosted
from worldline.store import kv

log = logging.getLogger("worldline.worker")

CYCLES_MAX = 4  # in flight at once, over different worlds: while one waits for its sync, others step
UPKEEP_MS = 50  # between turns, if there is anything to do
REST_MS = 500
LONG_AGO_US = -(2**62)


class WorldWorker:
    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        universe: ids.UniverseId,
        programs: Sequence[Program],
        *,
        blobs: blob_layer.Blobs,
        live: hub.Hub,
        claims: step_batch.Claims,
        settings: WorkerSettings,
        worker: ids.WorkerId,
        is_dead: Callable[[ids.WorkerId], bool] = lambda _: False,
        telemetry: telemetry.Telemetry = telemetry.NOTHING,
    ) -> None:
        self._telemetry = telemetry
        self._engine = engine
        self._env = env
        code = {program.name: program.hash for program in programs}
        self._labels = placement.labels_of(settings.labels, universe=universe, programs=code)
        self._hub = live
        self._settings = settings
        self._kernel = kernel_thread.KernelThread(env)
        self._clock = cycles.Clock(env)
        self._refusals = refusals.Refusals(env, telemetry)
        self._cycle = cycles.Cycle(
            engine, env, blobs=blobs, claims=claims, settings=settings, kernel=self._kernel, clock=self._clock,
            acted=self._acted, stuck=self._stuck, telemetry=telemetry,
        )  # fmt: skip
        self._losses = losses.Losses(env, self._refusals, drop=self._drop, release=self._start_release)
        self._finder = search.Finder(engine, env, universe, clock=self._clock, is_dead=is_dead, worker=self)
        self._taker = take.Taker(
            engine, env, programs, blobs=blobs, kernel=self._kernel, clock=self._clock, cycle=self._cycle,
            labels=self._labels, others=self._finder.others, living=self._living, refusals=self._refusals,
            telemetry=telemetry,
        )  # fmt: skip
        self.under_way = self._cycle.under_way
        self._keeper = upkeep.Keeper(
            engine, env, settings, self._kernel, dropped=self._drop, freed=self._freed, telemetry=telemetry
        )
        self._hosted: dict[ids.Address, Hosted] = {}
        self._acquiring: dict[ids.Address, asyncio.Task[Hosted]] = {}
        self._again: dict[ids.Address, int] = {}  # lost, but not to another worker: to be taken again, and when
        self._ready: dict[ids.Address, None] = {}
        self._cycles: list[asyncio.Task[None]] = []
        self._beside: dict[str, asyncio.Task[None]] = {}  # the search and the upkeep that are under way
        self._watch = wakeup.Watch(engine, [ready.prefix(universe)])
        self._room = upkeep.Room(env, self._keeper, self._hosted, self._acquiring, settings.max_worlds_warm)
        self._life: leases.Life | None = None
        self._renewed_us = 0
        self._scanned_us = self._tended_us = LONG_AGO_US
        self._stall: stalls.Stall | None = None  # a step that does not return, while there is one
        self._over: BaseException | None = None  # why nothing is run here any more
        self.worker = worker
        self.incarnation = ids.Incarnation(envs.new_id(env))
        self.on_act: list[Callable[[Hosted, Done, step_batch.Built], None]] = []
        self.cycles = 0
        self.steps = 0

    # --- For the rest of the process --------------------------------------------------------------------------

    def hand_over(self, at: ids.Address, handover: Handover) -> bool:
        """Give an input to a world held here, without the inbox. False if it is not held: use the inbox then."""
        hosted = self._hosted.get(at)
        if hosted is None or hosted.lost or self._stall is not None:
            return False
        if self._telemetry.on:
            handover.since_us = self._env.monotonic_us()
        hosted.handed.append(handover)
        self._freed(hosted)
        return True

    def holds(self, at: ids.Address) -> bool:
        return at in self._hosted

    @property
    def held(self) -> list[Hosted]:
        return list(self._hosted.values())

    def poke(self, at: ids.Address) -> None:
        """The world's inbox may hold something."""
        hosted = self._hosted.get(at)
        if hosted is not None:
            self.look(hosted)

    def look(self, hosted: Hosted) -> None:
        """Read this world's inbox soon."""
        if self._telemetry.on and not hosted.unread:
            hosted.unread_us = self._env.monotonic_us()
        hosted.unread = True
        self._freed(hosted)

    def wake(self) -> None:
        """Do not rest: there may be something to do, or to stop."""
        self._watch.wake()

    def looked(self, seen: int) -> None:
        """All hints were read by a snapshot that had seen so many of the store's own."""
        self._watch.looked(seen)

    def keeps(self, at: ids.Address) -> bool:
        """Whether it is here, or on its way."""
        return at in self._hosted or at in self._acquiring or at in self._again or self._refusals.keeps(at)

    def peek(self, at: ids.Address) -> Hosted | None:
        return self._hosted.get(at)

    def refusal(self, at: ids.Address) -> str | None:
        """Why this worker leaves a world alone, or did before it is tried again."""
        return self._refusals.why(at)

    @property
    def life(self) -> leases.Life | None:
        """The life sign by which others see that this worker lives."""
        return self._life

    @property
    def restored_ms(self) -> float:
        """How long the last take of a world took."""
        return self._taker.restored_ms

    def runs(self, world: worlds.World) -> bool:
        """Whether this worker would run such a world."""
        self._refusals.seen(world.at, world.raw)
        wanted = world.meta.status is Status.ACTIVE and not self._refusals.blocks(world.at)
        return wanted and placement.unmet(placement.needs_of(world.meta), self._labels) is None

    def found_damaged(self, at: ids.Address, error: errors.Corrupt) -> None:
        """Records of this world cannot be read: it is left alone, and the search goes on."""
        if not self._refusals.blocks(at):
            self._refusals.refuse(at, "corrupt", str(error))

    def time_us(self) -> int:
        """The store's time, carried on by our own clock since it was last read."""
        return self._clock.now_us()

    async def hold(self, at: ids.Address) -> Hosted | None:
        """Take a world, if it is free, and bring it back. None if another worker has it, or it is refused here: it can
        be reached by its inbox.
        """
        hosted = self._hosted.get(at)
        if hosted is not None:
            return hosted
        if self._over is not None:
            raise errors.Closed("no worlds are run here any more") from self._over
        if self._stall is not None:
            return None
        pending = self._acquiring.get(at)
        if pending is None and self._refusals.withholds(at):
            return None
        if pending is None:
            pending = self._acquiring[at] = asyncio.get_running_loop().create_task(self._taker.take(at))
            pending.add_done_callback(lambda task: self._taken(at, task))
        try:
            return await asyncio.shield(pending)
        except errors.Exists:
            return None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if pending.cancelled() and task is not None and not task.cancelling():
                return None  # it was given up, for a step of another world that does not return
            raise

    async def try_hold(self, at: ids.Address) -> Hosted | None:
        """The same for a world that nobody here has asked for: whatever is wrong with it is in nobody else's way."""
        now_us = self._env.monotonic_us()
        if self._refusals.blocks(at) or self._again.get(at, now_us) > now_us:
            return None
        try:
            return await self.hold(at) if await self._room.make() else None
        except (errors.NotFound, errors.Closed, errors.Corrupt, errors.Lost):
            return None
        except errors.StoreError as error:  # its snapshot may be out of reach where others are not
            log.warning("world %s cannot be taken now: %s", at.world.hex(), error, extra=telemetry.about(at))
            self._again[at] = self._env.monotonic_us() + losses.STUCK_MS * 1000
            return None
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one world is no other world's concern
            self._refusals.refuse(at, "restore", kernel_thread.describe(error), cause=error)
            return None

    # --- The loop's turn --------------------------------------------------------------------------------------

    async def tick(self) -> None:
        """One turn: renew the life sign, start what is due beside it and a cycle if there is one, or rest."""
        try:
            await self._turn()
        except errors.Error:
            raise
        except MemoryError as error:
            raise errors.CannotStep("there is no memory left for a turn", lasting=False) from error
        except Exception as error:
            self._end(error)  # a bug: whoever waits for an answer must not wait for ever
            raise

    async def _turn(self) -> None:
        self._watch.clear()
        now_us = self._env.monotonic_us()
        self._check_tasks()
        if self._life is None or now_us - self._renewed_us >= self._settings.heartbeat_ms * 1000:
            await self._renew(now_us)
        doing = self._kernel.doing
        late = doing is not None and now_us - doing.since_us > self._settings.lease_ttl_ms * 1000
        if (late or self._stall is not None) and await self._stalled(now_us):
            await self._watch.rest(min(self._settings.heartbeat_ms, REST_MS))
            return
        self._start_search(now_us)
        self._start_upkeep(now_us)
        self._start_emptying()
        if len(self._cycles) < CYCLES_MAX:
            chosen = self._choose()
            if chosen:
                self._cycles.append(asyncio.get_running_loop().create_task(self.cycle(chosen)))
                await asyncio.sleep(0)
                return
        await self._watch.rest(min(self._settings.heartbeat_ms, self._settings.scan_ms, REST_MS))

    def _choose(self) -> list[Hosted]:
        """Ready worlds, those that have waited longest first. What is still busy comes again when it is done."""
        chosen: list[Hosted] = []
        for at in list(self._ready)[: self._settings.max_worlds_per_cycle]:
            del self._ready[at]
            hosted = self._hosted.get(at)
            if hosted is not None and hosted.has_work:
                hosted.busy = True
                chosen.append(hosted)
        return chosen

    def _freed(self, hosted: Hosted) -> None:
        """The world may have something to do: if so, it gets its turn."""
        if hosted.has_work:
            self._ready[hosted.at] = None
            self._watch.wake()

    def _check_tasks(self) -> None:
        """Let go of tasks that have ended; raise what ended them, if it was not their commit."""
        if not self._cycles and not self._beside:
            return
        ended = [task for task in [*self._cycles, *self._beside.values()] if task.done()]
        self._cycles = [task for task in self._cycles if not task.done()]
        self._beside = {name: task for name, task in self._beside.items() if not task.done()}
        failed = [error for task in ended if not task.cancelled() and (error := task.exception()) is not None]
        for error in sorted(failed, key=lambda each: isinstance(each, errors.Error)):
            raise error  # a bug first: an outside fault must not hide it

    def _start_beside(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._beside[name] = asyncio.get_running_loop().create_task(work, name=name)
        self._beside[name].add_done_callback(lambda _: self._watch.wake())

    # --- Cycles -----------------------------------------------------------------------------------------------

    async def cycle(self, chosen: list[Hosted]) -> None:
        """Read, step, commit, act: once for these worlds, all marked busy. Cycles over other worlds may overlap."""
        self.cycles += 1
        given = [self._cycle.take(hosted) for hosted in chosen]
        try:
            for lost in await self._cycle.run(given):
                self._losses.settle(lost)
        except BaseException as error:
            for each in given:
                if each.stepped:
                    self._drop(each.hosted, each.handed, error, again=True)
                else:
                    each.hosted.unread = True
            raise
        finally:
            if any(each.late for each in given):  # those without a turn are first in the next
                given.sort(key=lambda each: not each.late)
            for each in given:
                if each.again and self._over is None:
                    self._cycles.append(asyncio.get_running_loop().create_task(self._start_over(each)))
                else:
                    self._free(each)
            self._watch.wake()

    def _free(self, given: cycles.Given) -> None:
        """The world's turn is over. What was handed over and not taken is first in the next."""
        given.hosted.busy = False
        if given.again and given.stepped:  # it was not brought back
            self._drop(given.hosted, again=self._env.monotonic_us() + losses.STUCK_MS * 1000)
        if given.hosted.lost:
            _fail(given.handed, errors.Fenced("the world left this worker"))
        else:
            given.hosted.put_back(given.handed)
            self._freed(given.hosted)

    async def _start_over(self, given: cycles.Given) -> None:
        given.stepped = not await self._cycle.start_over(given)
        self._free(given)

    def _acted(self, hosted: Hosted, done: Done, built: step_batch.Built) -> None:
        self.steps += done.steps
        self._refusals.forgive(hosted.at)
        self._keeper.watch(hosted)
        for at in built.touched:
            self.poke(at)
        self._hub.publish(hosted.at, done.entries)
        for act in self.on_act:
            act(hosted, done, built)

    def _stuck(self, hosted: Hosted) -> None:
        """Something in its inbox cannot be read now: look again in a while."""
        asyncio.get_running_loop().call_later(losses.STUCK_MS / 1000, self.poke, hosted.at)

    def _start_release(self, lease: leases.Lease) -> None:
        self._start_beside(f"release {lease.at.world.hex()}", self._release(lease))

    async def _release(self, lease: leases.Lease) -> None:
        try:
            await world_lease.release(self._engine, self._env, lease)
        except errors.StoreError as error:  # the next search through everything finds that it is not in memory
            log.warning("world %s cannot be released now: %s", lease.at.world.hex(), error)

    def _drop(
        self,
        hosted: Hosted,
        handed: Sequence[Handover] = (),
        error: BaseException | None = None,
        *,
        again: bool | int = False,
    ) -> None:
        """Throw a world's memory away. What was handed over and is not settled goes back to whoever handed it, with
        `Fenced` if it has certainly not been taken. `again`: the world is brought back if nobody else has it, now or
        at a time.
        """
        hosted.lost = True
        if self._hosted.get(hosted.at) is hosted:
            del self._hosted[hosted.at]
            self._finder.keep_hints(hosted)
            self._hub.moved(hosted.at)
        # There, because a step may be under way; its `finally`s run there.
        self._kernel.submit(hosted.at, hosted.machine.close)
        _fail(handed, _certain(hosted, error))
        _fail(hosted.handed, errors.Fenced(f"world {hosted.at.world.hex()} left this worker"))
        hosted.handed.clear()
        if again:
            self._again[hosted.at] = self._env.monotonic_us() if again is True else again
            self._watch.wake()

    # --- Life -------------------------------------------------------------------------------------------------

    async def _renew(self, now_us: int) -> None:
        """One write renews every lease. A worker that is late with it must stop believing in its leases."""
        settings = self._settings
        late_us = now_us - self._renewed_us
        if self._life is not None and late_us > (settings.lease_ttl_ms - settings.heartbeat_ms) * 1000:
            log.warning("the life sign is %d ms old: letting go of %d worlds", late_us // 1000, len(self._hosted))
            self._telemetry.tell(telemetry.SelfFenced(len(self._hosted), late_us))
            self._life = None
            for hosted in list(self._hosted.values()):
                self._drop(hosted, again=True)
        self._life = await world_lease.beat(
            self._engine, self._env, self.worker, self.incarnation, settings,
            labels={**self._labels, **self._refusals.labels()}, told=self._clock.set,
        )  # fmt: skip
        self._renewed_us = now_us
        self._telemetry.tell(telemetry.Beat(self._env.monotonic_us() - now_us))

    async def _living(self) -> leases.Life:
        """The life sign of this worker, written now if there is none yet."""
        if self._life is None:
            await self._renew(self._env.monotonic_us())
        assert self._life is not None
        return self._life

    async def _stalled(self, now_us: int) -> bool:
        """Whether a step does not return. Then nothing else can be run here: all other worlds are let go."""
        found = stalls.find(self._kernel.doing, self._stall, now_us=now_us, ttl_us=self._settings.lease_ttl_ms * 1000)
        if found is None:
            if self._stall is not None:
                await stalls.end(self._engine, self._env, self.worker, self._stall)
                if self._stall.at is not None:
                    self._refusals.forgive(self._stall.at)
                self._stall, self._scanned_us = None, LONG_AGO_US
            return False
        if self._stall is None:
            self._stall = found
            if found.at is not None:
                self._refusals.refuse(found.at, "hung", stalls.WHY, lasting=True, keep=True)
            log.error("a step has not returned for %d ms: letting go of all other worlds", found.age_ms(now_us))
        await stalls.begin(self._engine, self._env, self.worker, self._stall)
        for hosted in [hosted for at, hosted in self._hosted.items() if at != found.at]:
            handed = self._cycle.abandon(hosted.at) if hosted.busy else []
            if handed is not None or self._stall.turns > 1:  # a commit under way is given a moment
                self._drop(hosted, handed or ())
        for at in [at for at in self._taker.waiting if at != found.at]:
            self._acquiring[at].cancel()
        self._again.clear()
        await self._finder.not_in_memory()
        return True

    # --- Searching and taking ---------------------------------------------------------------------------------

    def _start_search(self, now_us: int) -> None:
        """Look for worlds that want to be run: at once after a hint, through everything once in a while."""
        if "search" in self._beside:
            return
        if now_us - self._scanned_us >= self._settings.scan_ms * 1000:
            self._scanned_us = now_us
            self._watch.hinted = False
            self._start_beside("search", self._search_all())
        elif (
            self._watch.hinted
            or any(due_us <= now_us for due_us in self._again.values())
            or self._refusals.look_again(now_us)
            or self._room.look_again(now_us)
            or self._finder.look_again(now_us)
        ):
            self._watch.hinted = False
            self._start_beside("search", self._search())

    async def _search(self) -> None:
        now_us = self._env.monotonic_us()
        again = [at for at, due_us in self._again.items() if due_us <= now_us]
        for at in again:
            del self._again[at]
        again += [at for at in self._refusals.due(now_us) if at not in again]
        try:
            await reap.each(again, self.try_hold, at_once=search.HOLDS_AT_ONCE)
            await self._finder.by_hints()
        except BaseException:
            self._again.update(dict.fromkeys(again, now_us))
            self._watch.hinted = True
            raise
        # As long a rest as the look took: the more hints there are, the more are looked at together.
        await self._env.sleep(min(self._env.monotonic_us() - now_us, UPKEEP_MS * 1000) / 1_000_000)

    async def _search_all(self) -> None:
        try:
            for hosted in await self._finder.among_held(list(self._hosted.values())):
                if not hosted.busy:  # a busy one finds out by its commit
                    self._drop(hosted)
            await self._finder.of_the_dead()
            self._finder.look_at_all_hints()
            await self._search()
            await self._finder.not_in_memory()
            await self._finder.sweep()
        except BaseException:
            self._scanned_us = LONG_AGO_US
            raise

    def _taken(self, at: ids.Address, task: asyncio.Task[Hosted]) -> None:
        """A world was taken, or not; whoever asked may be gone."""
        self._acquiring.pop(at, None)
        if task.cancelled() or task.exception() is not None:
            return
        hosted = task.result()
        hosted.careful = self._losses.careful(at)
        self._hosted[at] = hosted
        self._finder.give_hints(hosted)
        self._hub.moved(at)
        self._keeper.watch(hosted)
        self._freed(hosted)

    # --- Upkeep and the end -----------------------------------------------------------------------------------

    def _start_upkeep(self, now_us: int) -> None:
        crowded = len(self._hosted) > self._settings.max_worlds_warm
        due = crowded or self._keeper.next_us() <= now_us
        if due and "upkeep" not in self._beside and now_us - self._tended_us >= UPKEEP_MS * 1000:
            self._tended_us = now_us
            self._start_beside("upkeep", self._upkeep())

    async def _upkeep(self) -> None:
        await self._keeper.turn()
        if len(self._hosted) > self._settings.max_worlds_warm:
            await self._keeper.make_room(list(self._hosted.values()))

    def _start_emptying(self) -> None:
        """A worker that is being emptied gives its worlds back, a few at a time, and takes none."""
        draining = self._life is not None and self._life.sign.draining
        if draining and self._hosted and "emptying" not in self._beside:
            leaving = list(self._hosted)[: upkeep.AT_ONCE]
            self._start_beside("emptying", self._empty(leaving))

    async def _empty(self, leaving: list[ids.Address]) -> None:
        life = leases.decode_life(self.worker, (await self._engine.read(leases.get_life(self.worker))).value(0))
        if life is not None and not life.sign.draining:
            self._life = life  # it may take worlds again, and may have taken some already
            return
        await reap.each(leaving, self.forget, at_once=upkeep.AT_ONCE)

    async def give_up(self, hosted: Hosted) -> None:
        """Let another worker have a world, whatever waits for it. It is told by a hint."""
        log.info("world %s is wanted elsewhere", hosted.at.world.hex())
        await self._keeper.let_go(hosted, whatever=True, hint=True)

    async def save_when_free(self, hosted: Hosted) -> None:
        await self._keeper.save(hosted)

    async def forget(self, at: ids.Address) -> None:
        """Stop running a world, whatever waits for it: it is paused, archived or deleted."""
        hosted = self._hosted.get(at)
        if hosted is not None:
            await self._keeper.let_go(hosted, whatever=True)

    async def close(self, *, abandon: bool = False) -> None:
        """Finish: save and release every world, say goodbye. `abandon` leaves everything as it stands."""
        self._over = self._over or errors.Closed("the host was closed")
        self._keeper.stop()
        await self._watch.close()
        going = True
        while going:  # a cycle that ends may begin to release a world
            tasks = [*self._beside.values(), *self._cycles, *self._acquiring.values()]
            going = not all(task.done() for task in tasks)
            await asyncio.gather(*tasks, return_exceptions=True)
        try:
            if not abandon:
                await self._leave()
        finally:
            for hosted in list(self._hosted.values()):
                self._drop(hosted)
            self._kernel.shutdown()

    async def _leave(self) -> None:
        held = list(self._hosted.values())
        for start in range(0, len(held), upkeep.AT_ONCE):
            part = held[start : start + upkeep.AT_ONCE]
            await asyncio.gather(*(self._keeper.let_go(hosted, whatever=True) for hosted in part))
        if self._life is not None:
            await world_lease.say_goodbye(self._engine, self._env, self._life)
            self._life = None

    def _end(self, error: BaseException) -> None:
        """Nothing more is run here."""
        self._over = error
        for hosted in list(self._hosted.values()):
            self._drop(hosted, error=error)


def _certain(hosted: Hosted, error: BaseException | None) -> Exception:
    """What to tell those whose input was under way. `Fenced` only if it was certainly not taken."""
    if error is None or isinstance(error, errors.StoreUnavailable | errors.StoreFull):
        return errors.Fenced(f"world {hosted.at.world.hex()} left this worker")
    if isinstance(error, errors.Error):
        return error
    return errors.StoreUncertain(f"the worker was stopped while this was under way ({error!r})")


def _fail(handed: Sequence[Handover], error: Exception) -> None:
    for handover in handed:
        handover.fail(error)
