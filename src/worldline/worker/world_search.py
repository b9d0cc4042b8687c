"""Finding worlds that want to be run: by hints, by their holders' death, and by looking through all of them.

A world with a blocked run waits for code that fits, and is taken by a worker with other code than it has now
(`runtime/blocked_scan.py`).

Three nets, one under the other. A producer leaves a ready hint, found at once. A worker that dies leaves its worlds
behind: they are freed (`runtime.dead_workers`), what its process had claimed is due again, and those with something
unread get a hint. And because hints may be lost, all inboxes are looked into once in every `scan_ms`, a page of worlds
at a time, in between other searches.

A search that looks at a world held here also sees where it is wanted: one that is assigned to another worker, alive
and not being emptied, is given up to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from worldline.base import env as envs
from worldline.base import errors, probes
from worldline.codec import printable
from worldline.layers import inbox as inboxes
from worldline.layers import leases, ready, worlds
from worldline.model import ids
from worldline.model.world_records import Status
from worldline.runtime import (
    blocked_scan,
    dead_workers,
    death_witness,
    hint_scan,
    program_versions,
    quarantine,
    wakeup,
    worker_labels,
)
from worldline.runtime import facts as telemetry
from worldline.runtime import lease_calls as world_lease
from worldline.runtime.universes import fair_turns, world_sweep
from worldline.runtime.universes.served_universes import Universes
from worldline.store import kv, paging
from worldline.worker import kernel_thread, step_losses
from worldline.worker import world_refusals as refusals
from worldline.worker.held_world import HeldWorld
from worldline.worker.store_clock import StoreClock
from worldline.worker.world_register import Holdings

log = printable.logger("worldline.worker")

PAGE = 1_000
HOLDS_AT_ONCE = 16
REST_US = 50_000  # after a search, at most
LONG_AGO_US = -(2**62)
AT_ONCE = 128  # worlds with hints that one search looks at, if there are many universes
PLACE_US = 250_000  # how often it is looked at where a world is and where it is wanted, however many hints it has


class SearchingWorker(Protocol):
    """What a search needs of the worker it is for."""

    @property
    def worker(self) -> ids.WorkerId: ...

    @property
    def incarnation(self) -> ids.Incarnation: ...

    @property
    def life(self) -> leases.HeartbeatRecord | None: ...

    async def give_up(self, held: HeldWorld) -> None:
        """Let another worker have a world."""

    async def make_room(self, universe: ids.UniverseId) -> bool:
        """Whether one world more of a universe may be taken."""


class Searcher:
    """One worker's searches. They run beside its cycles, one at a time."""

    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        universes: Universes,
        worker: SearchingWorker,
        *,
        holdings: Holdings,
        hints: hint_scan.HintScan,
        clock: StoreClock,
        others: death_witness.DeathWitness,
        guard: program_versions.VersionGuard,
        refusals: refusals.Refusals,
        labels: dict[str, str],
        watch: wakeup.Wakeup,
        scan_us: int,
        budget: quarantine.DeathBudget,
        telemetry: telemetry.Telemetry,
    ) -> None:
        self._engine = engine
        self._env = env
        self._universes = universes
        self._worker = worker
        self._holdings = holdings
        self._hints = hints
        self._clock = clock
        self._others = others
        self._guard = guard
        self._refusals = refusals
        self._labels = labels
        self._watch = watch
        self._scan_us = scan_us
        self._budget = budget
        self._scanned_us = LONG_AGO_US
        self._freer = dead_workers.Freer(engine, env, universes.serves, others, telemetry)
        self._sweep = world_sweep.Sweep(universes)
        self._pace = world_sweep.Pace(scan_us)
        self._page_us = LONG_AGO_US  # when the next page of it is due
        self._blocked = blocked_scan.BlockedScan(engine, universes)
        self._placed: dict[ids.Address, int] = {}  # whose place is known, and when to look again; the oldest first
        self.has_searched = False  # through everything, once: what a dead process has left is held here, or not to be

    def is_due(self, now_us: int, *, everything: bool) -> bool:
        """Whether to search: at once after a hint; through everything once in a while."""
        if everything:
            return now_us - self._scanned_us >= self._scan_us
        placed = bool(self._placed) and next(iter(self._placed.values())) <= now_us
        again = self._holdings.again_due(now_us) or self._refusals.look_again(now_us)
        return self._watch.hinted or again or placed or self._blocked.pending or now_us >= self._page_us

    def rest_ms(self) -> float:
        """How long until the next page is due."""
        return max(1.0, (self._page_us - self._env.monotonic_us()) / 1000)

    def scan_soon(self) -> None:
        """Search through everything with the next turn."""
        # Both: worlds without a hint are found by the pages alone.
        self._scanned_us = self._page_us = LONG_AGO_US

    async def run(self, *, everything: bool) -> None:
        now_us = self._env.monotonic_us()
        # Before the search: a hint that comes while it reads is for the next one.
        self._watch.take_hint()
        if everything:
            self._scanned_us = now_us
        try:
            await (self.search_all() if everything else self.search())
            if self._env.monotonic_us() >= self._page_us:
                await self.sweep()
        except BaseException:
            self._watch.hint()
            if everything:
                self.scan_soon()
            raise
        if not everything:
            # As long a rest as the look took: the more hints there are, the more are looked at together.
            await self._env.sleep(min(self._env.monotonic_us() - now_us, REST_US) / 1_000_000)

    async def search(self) -> None:
        """Take the worlds that are to be taken again, those whose refusal has ended, and those that hints tell of."""
        now_us = self._env.monotonic_us()
        again = self._holdings.pop_again(now_us)
        again += [at for at in self._refusals.due(now_us) if at not in again]
        try:
            await dead_workers.each(again, self._try_hold, at_once=HOLDS_AT_ONCE)
            await self.by_hints()
            await self.with_blocked_runs()
        except BaseException:
            for at in again:
                self._holdings.take_again(at, now_us)
            raise

    async def search_all(self) -> None:
        """The same, and through everything: worlds held here, worlds of dead workers, all hints."""
        for held in await self.among_held(self._holdings.all):
            if not held.busy:  # a busy one finds out by its commit
                self._holdings.drop(held)
        await self.of_the_dead()
        self._hints.restart()
        self._blocked.restart()
        await self.search()
        self.has_searched = True
        await self.not_in_memory()

    async def by_hints(self) -> None:
        """Take the worlds that hints say are ready. Hints of worlds that other workers hold stay, and are looked at
        again after a while: their holders may be gone by then.
        """
        now_us = self._env.monotonic_us()
        read = await self._hints.read()
        self._clock.set(read.time_us)
        # What was written before this read is no news any more.
        self._watch.looked(read.seen)
        fresh = self._hints.take_fresh()
        due = [at for at, due_us in self._placed.items() if due_us <= now_us]
        for at in due:
            del self._placed[at]
        try:
            await self._look_at(fresh, [at for at in due if self._hints.has(at)])
        except BaseException:
            self._placed |= dict.fromkeys([*fresh, *due], now_us)  # look at them with the next search
            raise

    async def _look_at(self, fresh: Sequence[ids.Address], due: Sequence[ids.Address]) -> None:
        """Worlds with hints that are new, and with hints that were there when their place was last looked at."""
        stood = [at for at in due if self._holdings.peek(at) is None]
        await self._hints.check(stood)
        looking: list[ids.Address] = []
        for at in dict.fromkeys([*fresh, *due]):
            hosted = self._holdings.peek(at)
            if hosted is None:
                if at not in self._placed and self._hints.has(at):
                    looking.append(at)
                continue
            if at not in self._placed or ready.LATER in self._hints.priorities(at):
                looking.append(at)
            self._hinted(hosted)
        looking = self._fair(looking)
        for start in range(0, len(looking), PAGE):
            await self._take(looking[start : start + PAGE])
        for at in looking:
            if self._holdings.peek(at) is None and (at in stood or at not in self._placed):
                await self._hints.compact(at)

    def _fair(self, looking: Sequence[ids.Address]) -> list[ids.Address]:
        """Worlds of one universe are looked at at once. Of many, so many that a universe that has few does not wait for
        one that has thousands: the others follow with the next search.
        """
        if self._universes.one is not None:
            return list(looking)
        ordered = fair_turns.in_turns(looking)
        later = ordered[AT_ONCE:]
        if later:
            probes.hit("search.left-for-later")
            now_us = self._env.monotonic_us()
            for at in later:
                self._placed.pop(at, None)
            # In front: `is_due` looks at the first alone, which must be the one that is due earliest.
            self._placed = dict.fromkeys(later, now_us) | self._placed
        return ordered[:AT_ONCE]

    async def with_blocked_runs(self) -> None:
        """Take the next of the worlds that have blocked runs and ran under other code than this worker has: adopting
        that tries them again.
        """
        if not self._blocked.pending:
            return
        found = [at for at in await self._blocked.next() if self._holdings.peek(at) is None]
        read = await self._engine.read(*(worlds.get(at) for at in found))
        changed: list[ids.Address] = []
        for index, at in enumerate(found):
            try:
                world = worlds.find(at, read.value(index))
            except errors.Corrupt as error:
                self._found_damaged(at, error)
                continue
            if world is not None and program_versions.is_other(world.meta, self._labels):
                changed.append(at)
        for hosted in await self._take(changed):
            self._holdings.look(hosted)

    def _hinted(self, hosted: HeldWorld) -> None:
        hosted.add_hints(self._hints.take(hosted.at))
        self._holdings.look(hosted)

    def _runs(self, world: worlds.WorldRecord) -> bool:
        """Whether this worker would run such a world."""
        # In every look: a changed record is how a person ends a refusal.
        self._refusals.seen(world.at, world.raw)
        wanted = world.meta.status is Status.ACTIVE and not self._refusals.blocks(world.at)
        return wanted and worker_labels.unmet(worker_labels.needs_of(world.meta), self._labels) is None

    def _found_damaged(self, at: ids.Address, error: errors.Corrupt) -> None:
        """Leave a world alone whose records cannot be read; the search continues."""
        if not self._refusals.blocks(at):
            self._refusals.refuse(at, "corrupt", str(error), may_look=True)

    async def _try_hold(self, at: ids.Address) -> HeldWorld | None:
        """Take a world that no caller of this process has asked for: whatever is wrong with it concerns it alone."""
        if self._refusals.blocks(at) or self._holdings.waits(at, self._env.monotonic_us()):
            return None
        try:
            return await self._holdings.hold(at) if await self._worker.make_room(at.universe) else None
        except (errors.NotFound, errors.Closed, errors.Corrupt, errors.Lost):
            return None
        except errors.StoreError as error:  # its snapshot may be out of reach where others are not
            log.warning("world %s cannot be taken now: %s", at.world.hex(), error, extra=telemetry.about(at))
            self._holdings.take_again(at, self._env.monotonic_us() + step_losses.STUCK_MS * 1000)
            return None
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one world is no other world's concern
            self._refusals.refuse(at, "restore", kernel_thread.describe(error), cause=error)
            return None

    async def _take(self, addresses: Sequence[ids.Address]) -> list[HeldWorld]:
        """Take those of these worlds that can be had, give up those that are wanted elsewhere. Returns the taken."""
        if not addresses:
            return []
        held = [hosted for at in addresses if (hosted := self._holdings.peek(at)) is not None]
        others = [at for at in addresses if self._holdings.peek(at) is None]
        read = await self._engine.read(
            *(leases.get_assignment(hosted.at) for hosted in held),
            *(request for at in others for request in (worlds.get(at), *leases.reads(at))),
        )
        await self._give_up(held, [_assignee(read.value(index)) for index in range(len(held))])
        found: list[tuple[worlds.WorldRecord, leases.LeaseState]] = []
        paused: list[worlds.WorldRecord] = []
        for index, at in enumerate(others):
            start = len(held) + 4 * index
            try:
                world = worlds.find(at, read.value(start))
                if world is not None and self._runs(world):
                    found.append((world, leases.decode(at, *(read.value(start + part) for part in (1, 2, 3)))))
                elif world is not None and world.meta.status is Status.PAUSED:
                    paused.append(world)
            except errors.Corrupt as error:  # the others can be found all the same
                self._found_damaged(at, error)
        if paused:
            await self._end_quarantines(paused)
        allowed = await self._guard.allowed(found)
        free = await world_lease.may_take(self._engine, allowed, self._worker.life, self._others)
        # Looked at again at the same time, and so together.
        due_us = (self._env.monotonic_us() // PLACE_US + 1) * PLACE_US
        self._placed |= dict.fromkeys([*(hosted.at for hosted in held), *(world.at for world, _ in found)], due_us)
        tried = await dead_workers.each(free, self._try_hold, at_once=HOLDS_AT_ONCE)
        taken = [hosted for hosted in tried if hosted is not None]
        for hosted in taken:
            self._placed.pop(hosted.at, None)
        return taken

    async def _end_quarantines(self, paused: Sequence[worlds.WorldRecord]) -> None:
        """Those that are over: a hint tells of each."""
        for at in await quarantine.end_due(self._engine, self._env, paused, self._budget):
            log.warning(
                "world %s: its quarantine is over; it is tried again", at.world.hex(), extra=telemetry.about(at)
            )

    async def _give_up(self, held: Sequence[HeldWorld], wanted_at: Sequence[ids.WorkerId | None]) -> None:
        """Let go of those that are wanted by another worker, which is told by a hint."""
        elsewhere = {
            hosted.at: worker
            for hosted, worker in zip(held, wanted_at, strict=True)
            if worker is not None and worker != self._worker.worker
        }
        if not elsewhere:
            return
        leaving = await world_lease.wanted_there(self._engine, elsewhere, self._others)
        ours = {hosted.at: hosted for hosted in held}
        await dead_workers.each(leaving, lambda at: self._worker.give_up(ours[at]), at_once=HOLDS_AT_ONCE)

    async def sweep(self) -> None:
        """Look into the inboxes of the next page of worlds, for hints that were lost."""
        began_us = self._env.monotonic_us()
        ranges = self._sweep.next(PAGE)
        read = await self._engine.read(*ranges.values())
        listed = self._sweep.listed(list(ranges), read)
        others = [at for at in listed if self._holdings.peek(at) is None]
        waiting = await dead_workers.with_unread(self._engine, others)
        for hosted in await self._take(waiting):
            self._holdings.look(hosted)
        now_us = self._env.monotonic_us()
        self._page_us = self._pace.next_us(began_us=began_us, now_us=now_us, is_over=self._sweep.is_over)

    async def among_held(self, held: Sequence[HeldWorld]) -> list[HeldWorld]:
        """Look into the inboxes of worlds held here. Returns those that are not ours any more."""
        gone: list[HeldWorld] = []
        for start in range(0, len(held), PAGE):
            part = held[start : start + PAGE]
            read = await self._engine.read(
                *(leases.reads(hosted.at)[0] for hosted in part),
                *(inboxes.read_range(hosted.at, count_max=1) for hosted in part),
                *(leases.get_assignment(hosted.at) for hosted in part),
            )
            ours: list[HeldWorld] = []
            wanted_at: list[ids.WorkerId | None] = []
            for index, hosted in enumerate(part):
                hosted.drop_mark()
                # The lease has moved on, so this memory is of an older epoch and must not be written.
                if read.value(index) != hosted.lease.raw_epoch:
                    gone.append(hosted)
                    continue
                ours.append(hosted)
                wanted_at.append(_assignee(read.value(2 * len(part) + index)))
                if read.page(len(part) + index).items:
                    self._holdings.look(hosted)
            await self._give_up(ours, wanted_at)
        return gone

    async def not_in_memory(self) -> None:
        """Release the worlds whose leases are here but not their memory, and that are not brought back here.

        A step that failed has thrown the memory away, and since then the world is wanted elsewhere, or is not to be run
        here any more. As long as this worker lives no other may have it.
        """
        async for page in paging.RangePages(self._engine, leases.held_range(self._worker.worker, count_max=PAGE)):
            found = leases.decode_held(self._worker.worker, page)
            lost = [at for at, _ in found if self._universes.serves(at.universe) and not self._holdings.keeps(at)]
            await dead_workers.each(lost, self._release_lost, at_once=HOLDS_AT_ONCE)

    async def _release_lost(self, at: ids.Address) -> None:
        read = await self._engine.read(*leases.reads(at))
        state = leases.decode(at, read.value(0), read.value(1), read.value(2))
        lease = leases.lease_of(state, self._worker.worker, self._worker.incarnation)
        # Asked once more: during the read the world may have been taken again here.
        if lease is not None and not self._holdings.keeps(at):
            await world_lease.release(self._engine, self._env, lease)

    async def of_the_dead(self) -> None:
        """Free the worlds of workers that are no more."""
        await self._freer.of_the_dead(but=self._worker.worker)


def _assignee(raw: bytes | None) -> ids.WorkerId | None:
    """Where a world is wanted. It is advice: what cannot be read advises nothing."""
    try:
        return leases.assignee(raw)
    except errors.Corrupt:
        return None
