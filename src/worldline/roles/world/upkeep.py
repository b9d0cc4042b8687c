"""Looking after the worlds that a worker holds: snapshots by policy, letting go of those that are not needed.

Everything here happens beside the cycles. A world is busy while it is saved, so no step is taken meanwhile; one that
cannot be saved now goes on and is tried again later, because nothing but a longer restore depends on it.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sized
from typing import Protocol

from worldline.base import env as envs
from worldline.base import errors
from worldline.kernel import snapshots as kernel_snapshots
from worldline.layers import leases
from worldline.model import ids
from worldline.model.settings import WorkerSettings
from worldline.roles import telemetry
from worldline.roles.world import kernel_thread
from worldline.roles.world import lease as world_lease
from worldline.roles.world.held_world import NEVER_US, Hosted
from worldline.store import kv

log = logging.getLogger("worldline.worker")

AT_ONCE = 16
SAVE_AGAIN_MS = 60_000  # after a failure
AGAIN_US = 200_000  # before a world is looked at again
TURN_MAX = 512  # worlds saved or let go in one turn
CROWDED_MS = 200  # before a full worker looks again whether there is room


class Dropped(Protocol):
    def __call__(self, hosted: Hosted, *, again: bool = False) -> None: ...


class Keeper:
    """`dropped` is told when a world turns out not to be ours; `freed` when one is free for steps again."""

    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        settings: WorkerSettings,
        kernel: kernel_thread.KernelThread,
        *,
        dropped: Dropped,
        freed: Callable[[Hosted], None],
        telemetry: telemetry.Telemetry = telemetry.NOTHING,
    ) -> None:
        self._engine = engine
        self._env = env
        self._settings = settings
        self._kernel = kernel
        self._dropped = dropped
        self._freed = freed
        self._telemetry = telemetry
        self._stopping = False
        # A heap by when each wants something; the number breaks ties. Worlds that are gone are not kept alive by it.
        self._due: list[tuple[int, int, weakref.ref[Hosted]]] = []
        self._count = 0

    def stop(self) -> None:
        """Begin nothing more of a turn that is under way."""
        self._stopping = True

    def watch(self, hosted: Hosted) -> None:
        """A world was taken, or has made steps: it may want something sooner than was known."""
        settings = self._settings
        if hosted.entries_since < settings.snapshot_entries:
            quiet_us = hosted.active_us + min(settings.snapshot_idle_ms, settings.idle_release_ms) * 1000
            if hosted.tend_us <= min(quiet_us, hosted.saved_us + settings.snapshot_ms * 1000):
                return  # it wants nothing before then
        due_us = world_lease.due_us(hosted, self._settings)
        if due_us < hosted.tend_us:
            self._put(hosted, due_us)

    def next_us(self) -> int:
        """When the next turn has something to do."""
        return self._due[0][0] if self._due else NEVER_US

    def _put(self, hosted: Hosted, due_us: int) -> None:
        self._count += 1
        hosted.tend_us = due_us
        heapq.heappush(self._due, (due_us, self._count, weakref.ref(hosted)))

    async def turn(self) -> None:
        """Save worlds that are due for it, and let go of those that have been idle for long. A few at a time."""
        saving: list[Hosted] = []
        leaving: list[Hosted] = []
        now_us = self._env.monotonic_us()
        while self._due and self._due[0][0] <= now_us and len(saving) + len(leaving) < TURN_MAX:
            due_us, _, known = heapq.heappop(self._due)
            hosted = known()
            if hosted is None or hosted.lost or due_us != hosted.tend_us:
                continue  # it is gone, or stands somewhere else in the queue
            hosted.tend_us = NEVER_US
            if world_lease.wants_saving(hosted, self._settings, now_us):
                saving.append(hosted)
            elif now_us - hosted.active_us >= self._settings.idle_release_ms * 1000 and _quiet(hosted):
                leaving.append(hosted)
            else:
                self._put(hosted, max(world_lease.due_us(hosted, self._settings), now_us + AGAIN_US))
        try:
            await self._each(saving, self._try_save)
            await self._each(leaving, self.let_go)
        finally:
            for each in [*saving, *leaving]:
                if not each.lost:
                    self._put(each, max(world_lease.due_us(each, self._settings), now_us + AGAIN_US))

    async def make_room(self, held: list[Hosted], *, room: int = 0) -> None:
        """Let go of the worlds that have been idle for longest, until there is so much room."""
        quiet = [hosted for hosted in held if _quiet(hosted)]
        excess = min(TURN_MAX, len(held) + room - self._settings.max_worlds_warm)
        if excess > 0:
            await self._each(heapq.nsmallest(excess, quiet, key=lambda hosted: hosted.active_us), self.let_go)

    async def save(self, hosted: Hosted) -> None:
        """Take a snapshot and make it the baseline. Waits until no step is under way."""
        await hosted.quiet()
        if hosted.lost or not hosted.entries_since:
            return
        hosted.busy = True
        began_us = self._env.monotonic_us()
        try:
            parts = await self._kernel.run(hosted.at, self._parts, hosted)
            outcome = await world_lease.save(self._engine, self._env, hosted, parts)
            if isinstance(outcome, kv.Ok):
                hosted.saved_us = self._env.monotonic_us()
                size, us = sum(map(len, parts)), hosted.saved_us - began_us
                self._telemetry.tell(telemetry.Saved(hosted.at, size, us))
            else:  # fenced, or an earlier save of ours that nobody waited for: what is known of it is worth nothing
                self._dropped(hosted, again=not leases.fenced(outcome, hosted.lease))
        finally:
            hosted.busy = False
            self._freed(hosted)

    async def let_go(self, hosted: Hosted, *, whatever: bool = False, hint: bool = False) -> None:
        """Release a world properly: saved, its lease free, a hint left if something is unread or a `hint` is wanted.

        One that has something to do again is kept, unless it must go `whatever` waits for it.
        """
        try:
            await self.save(hosted)
        except errors.StoreMissing as error:  # there is nowhere to put a snapshot; the journal has everything
            log.warning("world %s cannot be saved: %s", hosted.at.world.hex(), error, extra=telemetry.about(hosted.at))
        except errors.StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever is wrong with its state, it can be let go
            self._cannot_save(hosted, error)
        await hosted.quiet()
        if hosted.lost or (hosted.has_work and not whatever):
            return
        self._dropped(hosted)
        await world_lease.release(self._engine, self._env, hosted.lease, hint=hint)
        self._telemetry.tell(telemetry.Released(hosted.at))

    def _parts(self, hosted: Hosted) -> list[bytes]:
        """In the kernel's thread. Says so if a run has recorded so much that replaying it will be slow."""
        for run in hosted.machine.live_runs():
            record = run.record
            if len(record.ops) >= self._settings.run_outcomes_warn and record.id not in hosted.warned:
                hosted.warned[record.id] = None
                log.warning(
                    "run %r of world %s has recorded %d operations; end it now and then by wl.continue_as_new()",
                    record.id, hosted.at.world.hex(), len(record.ops), extra=telemetry.about(hosted.at),
                )  # fmt: skip
        return kernel_snapshots.save(hosted.machine)

    async def _try_save(self, hosted: Hosted) -> None:
        try:
            await self.save(hosted)
        except errors.StoreError as error:
            hosted.save_again_us = self._env.monotonic_us() + SAVE_AGAIN_MS * 1000
            log.warning(
                "world %s cannot be saved now: %s", hosted.at.world.hex(), error, extra=telemetry.about(hosted.at)
            )
        except Exception as error:  # noqa: BLE001 - a longer restore is the only harm, and to no other world
            self._cannot_save(hosted, error)

    def _cannot_save(self, hosted: Hosted, error: BaseException) -> None:
        hosted.save_again_us = self._env.monotonic_us() + SAVE_AGAIN_MS * 1000
        said = kernel_thread.describe(error)
        log.error(
            "world %s cannot be saved:\n%s", hosted.at.world.hex(), kernel_thread.trace(error),
            extra=telemetry.about(hosted.at),
        )  # fmt: skip
        self._telemetry.tell(telemetry.SaveFailed(hosted.at, said))

    async def _each(self, chosen: list[Hosted], do: Callable[[Hosted], Awaitable[None]]) -> None:
        for start in range(0, len(chosen), AT_ONCE):
            if self._stopping:
                return
            part = chosen[start : start + AT_ONCE]
            results = await asyncio.gather(*(do(hosted) for hosted in part), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result


class Room:
    """How much a worker can hold. One that is full takes a world only after it has let go of one that is idle.

    Worlds that somebody in the process has asked for are taken whatever there is; upkeep makes room afterwards.
    """

    def __init__(
        self, env: envs.Env, keeper: Keeper, held: Mapping[ids.Address, Hosted], acquiring: Sized, capacity: int
    ) -> None:
        self._env = env
        self._keeper = keeper
        self._held = held
        self._acquiring = acquiring
        self._capacity = capacity
        self._making = asyncio.Lock()
        self._turned_away_us: int | None = None

    def _full(self) -> bool:
        return len(self._held) + len(self._acquiring) >= self._capacity

    async def make(self) -> bool:
        """Whether one world more may be taken, now that idle ones have gone."""
        if self._full():
            async with self._making:
                if self._full():
                    room = len(self._acquiring) + min(AT_ONCE, 1 + self._capacity // 8)
                    await self._keeper.make_room(list(self._held.values()), room=room)
        if self._full():
            self._turned_away_us = self._turned_away_us or self._env.monotonic_us()
        return not self._full()

    def look_again(self, now_us: int) -> bool:
        """Whether it is time to look for worlds that were turned away."""
        if self._turned_away_us is None or now_us - self._turned_away_us < CROWDED_MS * 1000:
            return False
        self._turned_away_us = None
        return True


def _quiet(hosted: Hosted) -> bool:
    return not hosted.busy and not hosted.lost and not hosted.has_work
