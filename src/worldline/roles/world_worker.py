"""The world worker: holds worlds under leases and runs the cycle over them.

One cycle: read what is unread of every ready world (one read) -> step them in the kernel's thread, within budgets ->
one batch for each, one commit for all -> only then act: answer callers, hand out claimed work, publish entries.

A world whose epoch moved is fenced: it is dropped at once and never written again under that epoch. The memory of a
world whose commit failed for any other reason is thrown away and restored. The worker's life sign is one write for all
its worlds; when it cannot be renewed by its margin, the worker fences itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from worldline.base import env as envs
from worldline.base import errors, failures
from worldline.kernel import snapshots as kernel_snapshots
from worldline.kernel.program import Program
from worldline.keys import inbox as inbox_keys
from worldline.layers import blobs as blob_layer
from worldline.layers import commit, leases, ready, snapshots, worlds
from worldline.layers import inbox as inboxes
from worldline.layers import work as works
from worldline.model import ids, payload
from worldline.model import world as world_model
from worldline.model.settings import WorkerSettings
from worldline.roles import committing, holding, hub, restoring, watching
from worldline.roles.hosted import Done, Handover, Hosted
from worldline.store import kv, transact

log = logging.getLogger("worldline.worker")

CYCLES_MAX = 8  # in flight at once, over different worlds: while one waits for its sync, others step
UPKEEP_MS = 500
UPKEEP_WORLDS = 256


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
        claims: committing.Claims,
        settings: WorkerSettings,
        worker: ids.WorkerId,
        is_dead: Callable[[ids.WorkerId], bool] = lambda _: False,
    ) -> None:
        self._engine = engine
        self._env = env
        self._universe = universe
        self._programs = {program.name: program for program in programs}
        self._blobs = blobs
        self._hub = live
        self._claims = claims
        self._settings = settings
        self._is_dead = is_dead
        self._kernel = ThreadPoolExecutor(1, thread_name_prefix="worldline-kernel")
        self._hosted: dict[ids.Address, Hosted] = {}
        self._acquiring: dict[ids.Address, asyncio.Future[Hosted]] = {}
        self._refused: dict[ids.Address, str] = {}  # worlds this worker cannot run, and why
        self._ready: dict[ids.Address, None] = {}
        self._cycles: list[asyncio.Task[None]] = []
        self._tended_us = 0
        self._watch = watching.Watch(engine, [ready_prefix(universe)])
        self._life: leases.Life | None = None
        self._renewed_us = 0
        self._scanned_us = -(2**62)
        self._clock = (0, 0)  # the store's time, and ours when we read it
        self.worker = worker
        self.incarnation = ids.Incarnation(envs.new_id(env))
        self.on_act: list[Callable[[Hosted, Done, committing.Built], None]] = []
        self.cycles = 0
        self.steps = 0

    # --- For the rest of the process -------------------------------------------------------------------------

    def hand_over(self, at: ids.Address, handover: Handover) -> bool:
        """Give an input to a world held here, without the inbox. False if it is not held: use the inbox then."""
        hosted = self._hosted.get(at)
        if hosted is None or hosted.lost:
            return False
        hosted.handed.append(handover)
        if not hosted.busy:
            self._is_ready(hosted)
        return True

    def holds(self, at: ids.Address) -> bool:
        return at in self._hosted

    def poke(self, at: ids.Address) -> None:
        """The world's inbox may hold something."""
        hosted = self._hosted.get(at)
        if hosted is not None:
            hosted.unread = True
            self._is_ready(hosted)

    def wake(self) -> None:
        """Do not rest: there may be something to do, or to stop."""
        self._watch.wake()

    def peek(self, at: ids.Address) -> Hosted | None:
        return self._hosted.get(at)

    def refusal(self, at: ids.Address) -> str | None:
        return self._refused.get(at)

    async def in_kernel(self, do: Callable[[], object]) -> object:
        """Run something over a machine in the thread where machines are run."""
        return await asyncio.get_running_loop().run_in_executor(self._kernel, do)

    async def hold(self, at: ids.Address) -> Hosted | None:
        """Take a world, if it is free, and bring it back. None if another worker has it."""
        hosted = self._hosted.get(at)
        if hosted is not None:
            return hosted
        pending = self._acquiring.get(at)
        if pending is None:
            pending = self._acquiring[at] = asyncio.ensure_future(self._take(at))
            pending.add_done_callback(lambda _: self._acquiring.pop(at, None))
        try:
            return await asyncio.shield(pending)
        except errors.Exists:
            return None

    # --- The loop's turn -------------------------------------------------------------------------------------

    async def tick(self) -> None:
        """One turn: renew the life sign, look for worlds that are ready, start a cycle over them, or rest."""
        self._watch.clear()
        now_us = self._env.monotonic_us()
        self._check_cycles()
        await self._renew(now_us)
        if self._watch.hinted or now_us - self._scanned_us >= self._settings.scan_ms * 1000:
            self._watch.hinted = False
            await self._scan(now_us)
        if len(self._cycles) < CYCLES_MAX:
            chosen = self._choose()
            if chosen:
                self._cycles.append(asyncio.get_running_loop().create_task(self._cycle_and_wake(chosen)))
                await asyncio.sleep(0)
                return
        if now_us - self._tended_us >= UPKEEP_MS * 1000:
            self._tended_us = now_us
            await self._upkeep(now_us)
        await self._watch.rest(min(self._settings.heartbeat_ms, self._settings.scan_ms, UPKEEP_MS))

    def _choose(self) -> list[Hosted]:
        """Ready worlds, those that have waited longest first. What is still busy comes again when it is done."""
        chosen: list[Hosted] = []
        for at in list(self._ready)[: self._settings.max_worlds_per_cycle]:
            del self._ready[at]
            hosted = self._hosted.get(at)
            if hosted is not None and hosted.ready:
                hosted.busy = True
                chosen.append(hosted)
        return chosen

    def _is_ready(self, hosted: Hosted) -> None:
        self._ready[hosted.at] = None
        self._watch.wake()

    async def _cycle_and_wake(self, chosen: list[Hosted]) -> None:
        try:
            await self.cycle(chosen)
        finally:
            self._watch.wake()

    def _check_cycles(self) -> None:
        """Let go of cycles that have ended; raise what ended them, if it was not their commit."""
        running = []
        for task in self._cycles:
            if not task.done():
                running.append(task)
            elif task.exception() is not None:
                self._cycles = [each for each in self._cycles if each is not task]
                task.result()
        self._cycles = running

    # --- The cycle -----------------------------------------------------------------------------------------------

    async def cycle(self, chosen: list[Hosted]) -> None:
        """Read, step, commit, act: once for these worlds, all marked busy. Cycles over other worlds may overlap."""
        self.cycles += 1
        handed = {hosted.at: _take_handed(hosted, self._settings.max_inbox_batch) for hosted in chosen}
        try:
            unread, time_us = await self._read(chosen)
            worked = await asyncio.get_running_loop().run_in_executor(
                self._kernel, self._step_all, chosen, unread, handed, time_us
            )
            await self._commit(worked, handed, time_us)
        except BaseException:
            for hosted in chosen:
                if not hosted.lost:
                    self._drop(hosted, handed[hosted.at])
            raise
        finally:
            for hosted in chosen:
                hosted.busy = False
                if hosted.ready:
                    self._is_ready(hosted)

    async def _read(self, chosen: list[Hosted]) -> tuple[dict[ids.Address, list[tuple[inboxes.Unread, bytes]]], int]:
        """Unread items with their payloads at hand, and the store's time."""
        reading = [hosted for hosted in chosen if hosted.unread]
        unread: dict[ids.Address, list[tuple[inboxes.Unread, bytes]]] = {}
        if not reading:
            return unread, self.time_us()
        limit = self._settings.max_inbox_batch
        read = await self._engine.read(
            *(inboxes.read_range(hosted.at, start=hosted.mark, count_max=limit) for hosted in reading)
        )
        self._clock = (read.time_us, self._env.monotonic_us())
        for index, hosted in enumerate(reading):
            page = read.page(index)
            hosted.unread = page.more
            items = inboxes.decode(page.items)
            unread[hosted.at] = [(item, await self._load(item)) for item in items]
        return unread, read.time_us

    async def _load(self, unread: inboxes.Unread) -> bytes:
        carried: payload.Payload | None = getattr(unread.item, "payload", None)
        if carried is None:
            return b""
        return carried.inline if carried.inline is not None else await self._blobs.load(carried)

    def _step_all(
        self,
        chosen: list[Hosted],
        unread: dict[ids.Address, list[tuple[inboxes.Unread, bytes]]],
        handed: dict[ids.Address, list[Handover]],
        time_us: int,
    ) -> list[tuple[Hosted, Done]]:
        """In the kernel's thread. A world that had nothing after all is left out."""
        wall_ms = self._settings.max_cycle_wall_ms
        worked = []
        for hosted in chosen:
            given = unread.get(hosted.at, [])
            if given or handed[hosted.at] or hosted.machine.unfinished:
                done = hosted.run(given, handed[hosted.at], time_us=time_us, env=self._env, wall_ms=wall_ms)
                worked.append((hosted, done))
        return worked

    async def _commit(
        self, worked: list[tuple[Hosted, Done]], handed: dict[ids.Address, list[Handover]], time_us: int
    ) -> None:
        if not worked:
            return
        built: list[committing.Built] = []
        for hosted, done in worked:
            routes = []
            if done.large or done.outgoing or done.wanted:
                await committing.put_large(hosted, done)
                routes = await committing.route(self._engine, hosted, done.outgoing)
            built.append(committing.build(hosted, done, routes, self._claims, time_us=time_us))
        outcomes = await transact.commit(self._engine, self._env, *(each.batch for each in built))
        for (hosted, done), each, outcome in zip(worked, built, outcomes, strict=True):
            if isinstance(outcome, kv.Ok):
                self._act(hosted, done, each, handed[hosted.at])
            else:
                self._lost(hosted, done, outcome, handed[hosted.at])

    # --- After the commit ---------------------------------------------------------------------------------------

    def _act(self, hosted: Hosted, done: Done, built: committing.Built, handed: list[Handover]) -> None:
        """The steps are durable: now, and only now, the outside may learn of them."""
        hosted.head = done.after
        hosted.head_raw = built.head_raw
        hosted.entries_since += len(done.entries)
        hosted.active_us = self._env.monotonic_us()
        self.steps += done.steps
        for left in reversed(handed[len(done.handed) :]):
            hosted.handed.appendleft(left)
        if done.cut:
            hosted.unread = True
        if built.answers_self:
            hosted.unread = True
        for at in built.touched:
            self.poke(at)
        for handover, applied in done.handed:
            if handover.done is not None and not handover.done.done():
                handover.done.set_result(applied)
        self._hub.publish(hosted.at, done.entries)
        for act in self.on_act:
            act(hosted, done, built)

    def _lost(self, hosted: Hosted, done: Done, conflict: kv.Conflict, handed: list[Handover]) -> None:
        """The commit did not happen. Whose fault it was decides what becomes of what was handed over."""
        error = commit.lost(conflict, hosted.lease)
        log.info("%s; restoring it", error)
        kept: list[Handover] = []
        for handover in handed:
            if handover.claim is not None and works.lost(conflict, handover.claim):
                continue  # somebody else has this work now, and its answer
            if handover.client_id is not None:
                failed, found = conflict.at(inbox_keys.seen_key(hosted.at, handover.client_id))
                if failed and found is not None:
                    self._repeat(handover, found)
                    continue
            kept.append(handover)
        del done
        self._drop(hosted, kept, fenced=isinstance(error, errors.Fenced))

    def _repeat(self, handover: Handover, found: bytes) -> None:
        assert handover.client_id is not None
        if handover.done is None or handover.done.done():
            return
        try:
            stamp = inboxes.seen_stamp(found, handover.item, client_id=handover.client_id)
        except errors.IdReused as error:
            handover.done.set_exception(error)
        else:
            handover.done.set_exception(Repeated(stamp))

    def _drop(self, hosted: Hosted, handed: list[Handover], *, fenced: bool = False) -> None:
        """Throw a world's memory away. What was handed over and is not settled goes back to whoever handed it."""
        hosted.lost = True
        self._hosted.pop(hosted.at, None)
        hosted.machine.close()
        for handover in [*handed, *hosted.handed]:
            if handover.done is not None and not handover.done.done():
                handover.done.set_exception(errors.Fenced(f"world {hosted.at.world.hex()} left this worker"))
        if not fenced:
            self._scanned_us = -(2**62)

    def time_us(self) -> int:
        """The store's time, carried on by our own clock since it was last read."""
        store_us, ours_us = self._clock
        return store_us + (self._env.monotonic_us() - ours_us)

    # --- Life, scanning, upkeep -------------------------------------------------------------------------------

    async def _renew(self, now_us: int) -> None:
        """One write renews every lease. A worker that cannot write it in time must stop believing in its leases."""
        settings = self._settings
        if self._life is not None and now_us - self._renewed_us < settings.heartbeat_ms * 1000:
            return
        try:
            self._life = await holding.beat(self._engine, self._env, self.worker, self.incarnation, settings)
            self._renewed_us = now_us
        except errors.StoreError:
            if (
                self._life is not None
                and now_us - self._renewed_us > (settings.lease_ttl_ms - settings.heartbeat_ms) * 1000
            ):
                log.warning("the life sign could not be renewed in time: letting go of %d worlds", len(self._hosted))
                self._life = None
                for hosted in list(self._hosted.values()):
                    self._drop(hosted, [], fenced=True)
            raise

    async def _scan(self, now_us: int) -> None:
        """Take the worlds that hints say are ready, and look into the inboxes of those already held."""
        read = await self._engine.read(ready.read_range(self._universe, count_max=1_000))
        self._clock = (read.time_us, self._env.monotonic_us())
        hints = ready.decode(self._universe, read.page(0))
        self._scanned_us = now_us
        for at, priority, raw in hints:
            hosted = await self._try_hold(at)
            if hosted is None:
                continue
            hosted.unread = True
            self._is_ready(hosted)
            batch = kv.Batch()
            ready.clear(batch, at, priority=priority, raw=raw)
            await transact.commit(self._engine, self._env, batch)  # a conflict means a newer hint, which stays
        if not hints:
            for hosted in self._hosted.values():
                hosted.unread = True
                hosted.mark = b""
                self._ready[hosted.at] = None

    async def _try_hold(self, at: ids.Address) -> Hosted | None:
        if at in self._refused:
            return None
        try:
            return await self.hold(at)
        except (errors.NotFound, errors.Closed):
            return None

    async def _take(self, at: ids.Address) -> Hosted:
        """Acquire the lease, restore the world, adopt a change of its program if there is one."""
        read = await self._engine.read(worlds.get(at))
        world = worlds.decode(at, read.value(0))
        program = self._programs.get(world.meta.program)
        if program is None:
            raise errors.NotFound(f"no program {world.meta.program!r} is hosted here")
        if world.meta.status is not world_model.Status.ACTIVE:
            raise errors.Closed(f"world {world.meta.name!r} is {world.meta.status.name.lower()}")
        if self._life is None:
            await self._renew(self._env.monotonic_us())
        assert self._life is not None
        started_us = self._env.monotonic_us()
        lease = await holding.acquire(self._engine, self._env, at, self._life, self._is_dead)
        try:
            await holding.take_back_claims(self._engine, self._env, at, self._is_dead)
            restored = await restoring.restore(self._engine, self._blobs, program, at, self._kernel)
            hosted = Hosted(program, lease, self._blobs, restored, now_us=self._env.monotonic_us())
            if restored.program_hash != program.hash:
                await holding.adopt(self, hosted, world, restored.program_hash)
        except failures.Diverged as error:
            self._refused[at] = error.report
            log.warning("world %r cannot go on: %s", world.meta.name, error.report)
            await holding.release(self._engine, self._env, lease)
            raise errors.Closed(f"world {world.meta.name!r} cannot go on: {error.report}") from error
        except BaseException:
            await holding.release(self._engine, self._env, lease)
            raise
        self.restored_ms = (self._env.monotonic_us() - started_us) / 1000
        log.info(
            "world %r at epoch %d, height %d, in %.1f ms",
            world.meta.name,
            lease.epoch,
            hosted.head.height,
            self.restored_ms,
        )
        self._hosted[at] = hosted
        self._is_ready(hosted)
        return hosted

    restored_ms = 0.0

    async def _upkeep(self, now_us: int) -> None:
        """Save worlds that are due for it, and let go of those that have been idle for long. A few at a time."""
        settings = self._settings
        crowded = len(self._hosted) > settings.max_worlds_warm
        for hosted in list(self._hosted.values())[:UPKEEP_WORLDS]:
            self._hosted[hosted.at] = self._hosted.pop(hosted.at)  # the next turn looks at others
            if hosted.busy or hosted.lost or hosted.ready:
                continue
            if holding.wants_saving(hosted, settings, now_us):
                await self.save(hosted)
                continue
            idle_ms = (now_us - hosted.active_us) / 1000
            if idle_ms > settings.idle_release_ms or (crowded and idle_ms > 1):
                await self.let_go(hosted)

    async def save(self, hosted: Hosted) -> None:
        """Take a snapshot and make it the baseline."""
        hosted.busy = True
        try:
            parts = await self.in_kernel(lambda: kernel_snapshots.save(hosted.machine))
            outcome = await holding.save(self._engine, self._env, hosted, parts)  # type: ignore[arg-type]
            if isinstance(outcome, kv.Conflict):
                self._drop(hosted, [], fenced=leases.fenced(outcome, hosted.lease))
            else:
                hosted.saved_us = self._env.monotonic_us()
        finally:
            hosted.busy = False

    async def step_and_save(self, hosted: Hosted, handover: Handover, world: worlds.World) -> None:
        """Take one input and make the state after it the baseline, in one commit: a change of program."""
        time_us = self.time_us()
        wall_ms = self._settings.max_cycle_wall_ms

        def run() -> tuple[Done, list[bytes]]:
            done = hosted.run([], [handover], time_us=time_us, env=self._env, wall_ms=wall_ms)
            return done, kernel_snapshots.save(hosted.machine)

        done, parts = await asyncio.get_running_loop().run_in_executor(self._kernel, run)
        await committing.put_large(hosted, done)
        routes = await committing.route(self._engine, hosted, done.outgoing)
        built = committing.build(hosted, done, routes, committing.Claims(), time_us=time_us)
        root, size = await restoring.save_parts(self._blobs, parts)
        taken = snapshots.at_head(done.after, root=root, size=size, program_hash=hosted.program.hash)
        raw = holding.new_baseline(built.batch, hosted, taken)
        worlds.change(built.batch, world, program=(hosted.program.name, hosted.program.hash))
        [outcome] = await transact.commit(self._engine, self._env, built.batch)
        if isinstance(outcome, kv.Conflict):
            raise commit.lost(outcome, hosted.lease)
        self._act(hosted, done, built, [handover])
        hosted.baseline, hosted.baseline_raw, hosted.entries_since = taken, raw, 0

    async def save_when_free(self, hosted: Hosted) -> None:
        await hosted.quiet()
        if not hosted.lost and hosted.entries_since:
            await self.save(hosted)

    async def forget(self, at: ids.Address) -> None:
        """Stop running a world, whatever waits for it: it is paused, archived or deleted."""
        hosted = self._hosted.get(at)
        if hosted is None:
            return
        await self.save_when_free(hosted)
        await hosted.quiet()
        if not hosted.lost:
            self._drop(hosted, [], fenced=True)
            await holding.release(self._engine, self._env, hosted.lease)

    async def let_go(self, hosted: Hosted) -> None:
        """Release a world properly: saved, its lease free."""
        if hosted.entries_since and not hosted.lost:
            await self.save(hosted)
        if hosted.lost or hosted.ready:
            return
        self._drop(hosted, [], fenced=True)
        await holding.release(self._engine, self._env, hosted.lease)

    async def close(self, *, abandon: bool = False) -> None:
        """Finish: save and release every world, say goodbye. `abandon` leaves everything as it stands."""
        await self._watch.close()
        await asyncio.gather(*self._cycles, return_exceptions=True)
        for hosted in list(self._hosted.values()):
            assert not hosted.busy, "the loop has been stopped before"
            if abandon:
                self._drop(hosted, [], fenced=True)
                continue
            await self.let_go(hosted)
            if not hosted.lost:
                self._drop(hosted, [], fenced=True)
                await holding.release(self._engine, self._env, hosted.lease)
        if self._life is not None and not abandon:
            batch = kv.Batch()
            leases.goodbye(batch, self._life)
            await transact.commit(self._engine, self._env, batch)
            self._life = None
        self._kernel.shutdown(wait=True)


class Repeated(errors.Error):
    """The same input was taken before: this is the stamp it was taken under."""

    code = "repeated"

    def __init__(self, stamp: kv.Stamp) -> None:
        super().__init__("taken before")
        self.stamp = stamp


def ready_prefix(universe: ids.UniverseId) -> bytes:
    return ready.read_range(universe, count_max=1).begin


def _take_handed(hosted: Hosted, most: int) -> list[Handover]:
    return [hosted.handed.popleft() for _ in range(min(most, len(hosted.handed)))]
