"""Looking after the worlds that a worker holds: snapshots by policy, releasing those that are not needed.

Everything here happens beside the cycles. A world is busy while it is saved, so no step is made meanwhile; one that
cannot be saved now continues and is tried again later, because nothing but a longer restore depends on it.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import heapq
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from worldline.base import env as envs
from worldline.base import errors, probes
from worldline.codec import printable
from worldline.layers import leases
from worldline.layers.history import saved_state
from worldline.model import ids
from worldline.model.settings import WorkerSettings
from worldline.runtime import facts as telemetry
from worldline.runtime import lease_calls as world_lease
from worldline.runtime.holder_job import HolderJob
from worldline.store import kv
from worldline.worker import kernel_thread, state_saving
from worldline.worker.held_world import NEVER_US, HeldWorld
from worldline.worker.world_register import Holdings

log = printable.logger("worldline.worker")

AT_ONCE = 16
SAVE_AGAIN_MS = 60_000  # after a failure
AGAIN_US = 200_000  # before a world is looked at again
TURN_MAX = 512  # worlds saved or released in one turn
CROWDED_MS = 200  # before a full worker looks again whether there is room


class WorldDropper(Protocol):
    def __call__(self, held: HeldWorld, *, again: bool = False) -> None: ...


class Keeper:
    """`dropped` is told when a world turns out not to be ours; `freed` when one is free for steps again."""

    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        settings: WorkerSettings,
        kernel: kernel_thread.KernelThread,
        *,
        dropped: WorldDropper,
        freed: Callable[[HeldWorld], None],
        telemetry: telemetry.Telemetry = telemetry.NOTHING,
    ) -> None:
        self._engine = engine
        self._env = env
        self._settings = settings
        self._kernel = kernel
        self._dropped = dropped
        self._freed = freed
        self._jobs: Sequence[HolderJob] = ()
        self._telemetry = telemetry
        self._stopping = False
        self._snapshot_entries = settings.snapshot_entries
        self._unsaved_max = state_saving.bytes_max(settings)
        self._snapshot_us = settings.snapshot_ms * 1000
        self._quiet_us = min(settings.snapshot_idle_ms, settings.idle_release_ms) * 1000
        # A heap by when each wants something; the number breaks ties. Worlds that are gone are not kept alive by it.
        self._due: list[tuple[int, int, weakref.ref[HeldWorld]]] = []
        self._count = 0

    def attach(self, jobs: Sequence[HolderJob]) -> None:
        """Tell these of worlds that are taken or saved."""
        self._jobs = jobs

    def stop(self) -> None:
        """Begin nothing more of a turn that is under way."""
        self._stopping = True
        for job in self._jobs:
            job.stop()

    def taken(self, held: HeldWorld) -> None:
        """Watch a world that was taken, and let the jobs see whether there is something to do."""
        self.watch(held)
        self._look(held)

    def _look(self, held: HeldWorld) -> None:
        for job in self._jobs:
            job.look(held)

    def watch(self, held: HeldWorld) -> None:
        """A world was taken, or has made steps: it may want something sooner than was known."""
        # After every commit: four comparisons are cheaper than a place in the heap.
        known_us = held.tend_us
        if (
            known_us <= held.active_us + self._quiet_us
            and known_us <= held.saved_us + self._snapshot_us
            and held.entries_since < self._snapshot_entries
            and held.unsaved.bytes <= self._unsaved_max
        ):
            return  # it wants nothing before then
        due_us = state_saving.due_us(held, self._settings)
        if due_us < held.tend_us:
            self._put(held, due_us)

    def next_us(self) -> int:
        """When the next turn has something to do."""
        return self._due[0][0] if self._due else NEVER_US

    def _put(self, held: HeldWorld, due_us: int) -> None:
        self._count += 1
        held.tend_at(due_us)
        heapq.heappush(self._due, (due_us, self._count, weakref.ref(held)))

    async def turn(self) -> None:
        """Save worlds that are due for it, and release those that have been idle for long. A few at a time."""
        saving: list[HeldWorld] = []
        leaving: list[HeldWorld] = []
        now_us = self._env.monotonic_us()
        while self._due and self._due[0][0] <= now_us and len(saving) + len(leaving) < TURN_MAX:
            due_us, _, known = heapq.heappop(self._due)
            held = known()
            # Entries are never removed from a heap: an outdated one is recognised here.
            if held is None or held.lost or due_us != held.tend_us:
                continue  # it is gone, or stands somewhere else in the queue
            held.tend_at(NEVER_US)
            if state_saving.wants_saving(held, self._settings, now_us):
                saving.append(held)
            elif now_us - held.active_us >= self._settings.idle_release_ms * 1000 and _quiet(held):
                leaving.append(held)
            else:
                self._put(held, max(state_saving.due_us(held, self._settings), now_us + AGAIN_US))
        try:
            await self._each(saving, self._try_save)
            await self._each(leaving, self.let_go)
        finally:
            # Also after an error: a world without an entry would never be saved or released again.
            for each in [*saving, *leaving]:
                if not each.lost:
                    self._put(each, max(state_saving.due_us(each, self._settings), now_us + AGAIN_US))

    async def make_room(self, worlds: list[HeldWorld], *, room: int = 0) -> None:
        """Release the worlds that have been idle for longest, until there is so much room."""
        quiet = [held for held in worlds if _quiet(held)]
        excess = min(TURN_MAX, len(worlds) + room - self._settings.max_worlds_warm)
        if excess > 0:
            await self._each(heapq.nsmallest(excess, quiet, key=lambda held: held.active_us), self.let_go)

    async def save(self, held: HeldWorld) -> None:
        """Take a snapshot and make it the baseline. Waits until no step is under way."""
        await held.quiet()
        if held.lost or not held.entries_since:
            return
        # No `await` since `quiet`: no cycle can have begun in between.
        held.begin_saving()
        began_us = self._env.monotonic_us()
        try:
            await self._kernel.run(held.at, self._warn, held)
            compute = functools.partial(self._kernel.run, held.at)
            outcome = await state_saving.save(self._engine, self._env, held, compute, self._jobs)
            if isinstance(outcome, kv.Ok):
                held.saved(self._env.monotonic_us())
                if held.cold is None and await self._is_large(held):
                    held.cool(asyncio.get_running_loop())
                self._telemetry.tell(telemetry.BaselineSaved(held.at, held.baseline.size, held.saved_us - began_us))
                self._look(held)
            else:  # fenced, or an earlier save of ours that was not waited for: what is known of it is stale
                self._dropped(held, again=not leases.fenced(outcome, held.lease))
        finally:
            # Also after an error: inputs that came meanwhile wait for a cycle.
            held.end_saving()
            self._freed(held)

    async def _is_large(self, held: HeldWorld) -> bool:
        """Whether not all its cells should stay in memory. What their values take is looked at if it may matter."""
        header, cells_max = held.unsaved.header, self._settings.cells_memory_max
        if saved_state.is_large(header, cells_max) or not saved_state.may_be_large(header, cells_max):
            return saved_state.is_large(header, cells_max)
        size: int = await self._kernel.run(held.at, held.machine.cells.size)
        return size > cells_max

    async def let_go(self, held: HeldWorld, *, whatever: bool = False, hint: bool = False) -> None:
        """Release a world properly: saved, its lease free, a hint left if something is unread or a `hint` is wanted.

        One that has something to do again is kept, unless it must go `whatever` waits for it.
        """
        try:
            await self.save(held)
        except errors.StoreError as error:  # there is nowhere to put a snapshot; the journal has everything
            if not whatever and not isinstance(error, errors.StoreMissing):
                raise
            log.warning("world %s cannot be saved: %s", held.at.world.hex(), error, extra=telemetry.about(held.at))
        except Exception as error:  # noqa: BLE001 - whatever is wrong with its state, it can be released
            self._cannot_save(held, error)
        # Once more: a cycle may have begun after the save.
        await held.quiet()
        if held.lost or (held.has_work and not whatever):
            return
        # Before the release: after it another worker may write, and this memory must not be used.
        self._dropped(held)
        if await world_lease.release(self._engine, self._env, held.lease, hint=hint):
            self._telemetry.tell(telemetry.Released(held.at))

    def _warn(self, held: HeldWorld) -> None:
        """Say so if a run has recorded so much that replaying it will be slow."""
        for run in held.machine.live_runs():
            record = run.record
            if len(record.ops) >= self._settings.run_outcomes_warn and held.warn_once(record.id):
                log.warning(
                    "run %r of world %s has recorded %d operations; end it now and then by wl.continue_as_new()",
                    record.id,
                    held.at.world.hex(),
                    len(record.ops),
                    extra=telemetry.about(held.at),
                )

    async def _try_save(self, held: HeldWorld) -> None:
        try:
            await self.save(held)
        except errors.StoreError as error:
            held.not_saved(again_us=self._env.monotonic_us() + SAVE_AGAIN_MS * 1000)
            log.warning("world %s cannot be saved now: %s", held.at.world.hex(), error, extra=telemetry.about(held.at))
        except Exception as error:  # noqa: BLE001 - a longer restore is the only harm, and to no other world
            self._cannot_save(held, error)

    def _cannot_save(self, held: HeldWorld, error: BaseException) -> None:
        held.not_saved(again_us=self._env.monotonic_us() + SAVE_AGAIN_MS * 1000)
        said = kernel_thread.describe(error)
        log.error(
            "world %s cannot be saved:\n%s",
            held.at.world.hex(),
            kernel_thread.trace(error),
            extra=telemetry.about(held.at),
        )
        self._telemetry.tell(telemetry.SaveFailed(held.at, said))

    async def _each(self, chosen: list[HeldWorld], do: Callable[[HeldWorld], Awaitable[None]]) -> None:
        for start in range(0, len(chosen), AT_ONCE):
            if self._stopping:
                return
            part = chosen[start : start + AT_ONCE]
            results = await asyncio.gather(*(do(held) for held in part), return_exceptions=True)
            # Only when the whole part has ended, so that nothing runs on unobserved behind the error.
            for result in results:
                if isinstance(result, BaseException):
                    raise result


class HoldingRoom:
    """How much a worker can hold. One that is full takes a world only after it has released one that is idle; or, for
    a universe that has less than its share, of one of the universe that has most.

    Worlds that a caller in the process has asked for are taken whatever there is; upkeep makes room afterwards.
    """

    def __init__(self, env: envs.Env, keeper: Keeper, holdings: Holdings, capacity: int) -> None:
        self._env = env
        self._keeper = keeper
        self._holdings = holdings
        self._capacity = capacity
        self._making = asyncio.Lock()
        self._turned_away_us: int | None = None

    def _full(self) -> bool:
        return self._holdings.count + len(self._holdings.taking) >= self._capacity

    async def make(self, universe: ids.UniverseId) -> bool:
        """Whether one world more of a universe may be taken, now that idle ones have gone."""
        if self._full():
            async with self._making:
                if self._full():
                    # Room for a few more than one: the next ones then need not wait for a save and a release, too.
                    room = len(self._holdings.taking) + min(AT_ONCE, 1 + self._capacity // 8)
                    await self._keeper.make_room(self._holdings.all, room=room)
                if self._full():
                    await self._give_way(universe)
        if self._full():
            self._turned_away_us = self._turned_away_us or self._env.monotonic_us()
        return not self._full()

    async def _give_way(self, universe: ids.UniverseId) -> None:
        """Busy worlds of one universe do not keep all of another's out. What gives way comes back by its hint."""
        held = self._holdings.all
        counts = collections.Counter(each.at.universe for each in held)
        share = max(1, self._capacity // len({*counts, universe}))
        most = max(counts, key=lambda each: counts[each], default=universe)
        if counts[universe] < share < counts[most]:
            probes.hit("upkeep.gave-way")
            leaving = min((each for each in held if each.at.universe == most), key=lambda each: each.busy)
            await self._keeper.let_go(leaving, whatever=True, hint=True)

    def look_again(self, now_us: int) -> bool:
        """Whether it is time to look for worlds that were turned away."""
        if self._turned_away_us is None or now_us - self._turned_away_us < CROWDED_MS * 1000:
            return False
        self._turned_away_us = None
        return True


def _quiet(held: HeldWorld) -> bool:
    return not held.busy and not held.lost and not held.has_work
