"""The janitor: clears away what has had its time, in small turns.

A round goes through a universe once: the records of client ids whose window has passed, pointers into queues that no
longer lead anywhere and that no effect worker comes across, what dead workers have left, in the store (leases, chunks)
and beside it (lock files, temporary files of uploads); then the jobs that features bring (`runtime/janitor_job.py`),
such as a garbage collection. A job that watches keys does not wait for a round: what deleted worlds have left is
removed as soon as they are. Each turn looks at a bounded number of records, and each act is a commit of its own that
expects what was read, so any number of janitors may run at once. Nothing depends on one: without it, things only take
up room.

What has had its time is found by the age of the universe, which janitors count (`age_counter.py`), and by no clock;
temporary files, which have no record, by how long a process has found them unchanged (ADR 22).

Compaction and proofs are not done here: the process that holds a world does them, behind its snapshots
(`features/compaction/job.py`) and beside its steps (`features/proofs/job.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from worldline.base import errors, limits
from worldline.cluster import age_counter
from worldline.codec import printable, tuples
from worldline.keys import work as work_keys
from worldline.layers import age, leases, universes, worlds
from worldline.layers import inbox as inboxes
from worldline.layers import work as works
from worldline.model import ids
from worldline.runtime import dead_workers, death_witness, wakeup, worker_walk
from worldline.runtime import facts as telemetry
from worldline.runtime.janitor_job import JanitorContext, JanitorJob
from worldline.store import kv, transact

log = printable.logger("worldline.janitor")

SEEN_MAX = 5_000  # records of ids that were seen, of either kind, looked at in one turn
WORLDS_MAX = (limits.READ_REQUESTS_MAX - 1) // 4  # whose ids are looked at in one read, which asks four things of each
POINTERS_MAX = 1_000
HELD_MAX = 500
UPLOADS_MAX = 1_000  # uploads of blobs into the store that are looked at in one round
UPLOAD_US_MAX = 3_600_000_000  # an upload that began so long ago has died
LOOK_MS = 300_000  # between two looks at how much time has passed, at most


class ProcessLocks(Protocol):
    """The lock files by which the processes of one machine prove that they live."""

    def dead(self) -> list[ids.WorkerId]: ...

    def forget(self, worker: ids.WorkerId) -> None: ...


class _Cursor(msgspec.Struct, frozen=True):
    """Where to go on in the records of ids of a world; None: all of them were looked at in this round."""

    made: bytes | None
    chosen: bytes | None


def _behind(cursor: _Cursor | None, kind: telemetry.Clearable, start: bytes) -> _Cursor:
    before = cursor or _Cursor(None, None)
    if kind == "made_ids":
        return msgspec.structs.replace(before, made=start)
    return msgspec.structs.replace(before, chosen=start)


class Janitor:
    def __init__(
        self,
        context: JanitorContext,
        jobs: Sequence[JanitorJob],
        *,
        dedupe_window_ms: int,
        locks: ProcessLocks | None = None,
        sweep_uploads: Callable[[int, int], Awaitable[int]] | None = None,
    ) -> None:
        self._engine = engine = context.engine
        self._env = env = context.env
        self._universe = universe = context.universe
        self._blobs = context.blobs
        self._settings = context.settings
        self._telemetry = context.telemetry
        self._window_us = dedupe_window_ms * 1000
        self._freer = dead_workers.Freer(
            engine,
            env,
            lambda each: each == universe,
            death_witness.DeathWitness(env, context.is_dead),
            context.telemetry,
        )
        self._age = age_counter.AgeCounter(
            engine, env, universe, every_us=context.settings.round_ms * 1000 // age_counter.STORED_SHARE
        )
        self._locks = locks
        self._sweep_uploads = sweep_uploads
        self._at_once = [each for each in jobs if each.watches]
        self._in_rounds = [each for each in jobs if not each.watches]
        self._waiting: list[JanitorJob] = []  # those of this round that are not done, the one at work first
        self._watch = wakeup.Wakeup(engine, env, [prefix for each in self._at_once for prefix in each.watches])
        self._next_us = env.monotonic_us()  # when this round goes on, or the next one begins
        self._after: ids.WorldId | None = None  # the last world of this round that was begun
        self._last = False  # no world of this round comes behind it
        self._unfinished: dict[ids.Address, _Cursor] = {}  # worlds with more ids that were seen, and where to go on
        self._pointer = b""  # the last pointer of this round that was looked at
        self._worlds_done = self._pointers_done = self._rest_done = False
        self._began_us = 0  # this round; 0: it has not begun
        self.rounds = 0
        self.cleared = 0

    def wake(self) -> None:
        """The next turn is now."""
        self._next_us = self._env.monotonic_us()
        self._watch.wake()

    async def close(self) -> None:
        for each in (*self._at_once, *self._in_rounds):
            await each.close()
        with contextlib.suppress(errors.StoreError):
            await self._age.look(store=True)  # processes that live shorter than a round count, too
        await self._watch.close()

    async def tick(self) -> None:
        """One turn, and a rest: a short one within a round, a long one after it. What was deleted does not wait."""
        self._watch.clear()
        removed = await self.remove()
        if self._env.monotonic_us() >= self._next_us:
            over = await self.turn()
            pause_ms = self._settings.round_ms if over else self.within_ms
            self._next_us = self._env.monotonic_us() + pause_ms * 1000
        else:
            await self._age.look()
        rest_ms = max(1, min(LOOK_MS, (self._next_us - self._env.monotonic_us()) // 1000))
        await self._watch.rest(rest_ms if removed else min(rest_ms, self._settings.turn_ms))

    @property
    def within_ms(self) -> int:
        """The rest between two turns of a round."""
        at_work = self._waiting[0].rest_ms if self._waiting else None
        return self._settings.turn_ms if at_work is None else at_work

    async def remove(self) -> bool:
        """Give a turn to each job that watches: what was deleted does not wait. Returns whether that was all."""
        over = True
        for each in self._at_once:
            over = await each.turn() and over
        # The oldest look of all: whatever came after it is news to one of them.
        self._watch.looked(min((each.seen for each in self._at_once), default=-1))
        return over

    async def turn(self) -> bool:
        """One part of a round. Returns whether that was the last."""
        if await self._is_gone():
            return True
        await self._age.look()
        self._began_us = self._began_us or self._env.monotonic_us()
        if not self._worlds_done:
            self._worlds_done = await self._forget_ids()
            return False
        if not self._pointers_done:
            self._pointers_done = await self._drop_pointers()
            return False
        if not self._rest_done:
            await self._clear_rest()
            self._waiting = list(self._in_rounds)
            self._rest_done = True
        while self._waiting:
            if not await self._waiting[0].turn():
                return False
            del self._waiting[0]
        self._worlds_done = self._pointers_done = self._rest_done = False
        self.rounds += 1
        self._telemetry.tell(telemetry.JanitorRound(self._env.monotonic_us() - self._began_us))
        self._began_us = 0
        return True

    async def _clear_rest(self) -> None:
        """Clear what takes few reads: leases of dead workers, held records, files, uploads."""
        self.cleared += await self._freer.of_the_dead()
        await self._drop_orphans()
        self._count("lock_files", await self._forget_locks())
        if self._sweep_uploads is not None:
            self._count("temporary_files", await self._sweep_uploads(self._env.monotonic_us(), UPLOAD_US_MAX))
        removed = await self._blobs.abandoned(period_us=UPLOAD_US_MAX, remove=True, uploads_max=UPLOADS_MAX)
        self._count("uploads", removed)

    async def _is_gone(self) -> bool:
        """Whether the universe was deleted: nothing is to be written in it any more."""
        read = await self._engine.read(universes.get_meta(self._universe))
        return universes.is_closed(read.value(0))

    # --- Ids that were seen ------------------------------------------------------------------------------------

    async def _forget_ids(self) -> bool:
        """Records of ids in the next worlds of the round. Returns whether those were the last."""
        if not self._unfinished:
            read = await self._engine.read(
                worlds.list_range(
                    self._universe, after=self._after, count_max=min(WORLDS_MAX, self._settings.worlds_max)
                )
            )
            listed = worlds.listed_at(self._universe, read.page(0))
            self._unfinished = dict.fromkeys(listed, _Cursor(b"", b""))
            self._last = not read.page(0).more
            self._after = None if self._last else listed[-1].world
        await self._forget_seen(self._unfinished)
        return self._last and not self._unfinished

    async def _forget_seen(self, going: dict[ids.Address, _Cursor]) -> None:
        """Some of each world. Those of ids that we made are in the order of time, so that the older ones are enough;
        ids that clients chose are in none, and all of them are looked at.
        """
        self._unfinished = {}
        if not going:
            return
        each_max = 1 + SEEN_MAX // len(going)
        before_us = (await self._engine.read()).time_us - self._window_us
        ranges: list[tuple[ids.Address, telemetry.Clearable, kv.Range]] = []
        for at, cursor in going.items():
            if cursor.made is not None:
                made = inboxes.made_range(at, before_us=before_us, start=cursor.made, count_max=each_max)
                ranges.append((at, "made_ids", made))
            if cursor.chosen is not None:
                chosen = inboxes.chosen_range(at, start=cursor.chosen, count_max=each_max)
                ranges.append((at, "chosen_ids", chosen))
        # The age is of the same snapshot as the records: they were there when the universe was so old.
        wanted = (each for at, _, ids_of in ranges for each in (worlds.get(at), ids_of))
        read = await self._engine.read(age.get(self._universe), *wanted)
        now = age.decode(read.value(0))
        batches: dict[telemetry.Clearable, list[kv.Batch]] = {"made_ids": [], "chosen_ids": []}
        for index, (at, kind, _) in enumerate(ranges):
            page = read.page(2 + 2 * index)
            batch = kv.Batch()
            try:
                world = worlds.find(at, read.value(1 + 2 * index))
                if world is None:
                    continue  # nothing of a deleted world is written, and all of it goes by itself
                inboxes.forget(batch, page.items, now=now, window_us=self._window_us)
                if batch.expects:
                    worlds.expect_there(batch, world)
                    batches[kind].append(batch)
            except errors.Corrupt as error:  # it stays, and so do those beside it
                log.warning("world %s: client ids cannot be read: %s", at.world.hex(), error)
            if page.more:
                self._unfinished[at] = _behind(self._unfinished.get(at), kind, tuples.successor(page.items[-1][0]))
        for kind, found in batches.items():
            await self._commit(kind, found)

    # --- Pointers, workers -------------------------------------------------------------------------------------

    async def _drop_pointers(self) -> bool:
        """Pointers that lead nowhere, in queues that no worker may read. Returns whether all were seen."""
        begin, end = work_keys.due_all(self._universe)
        start = tuples.successor(self._pointer) if self._pointer else begin
        page = (await self._engine.read(kv.Range(start, end, count_max=POINTERS_MAX))).page(0)
        found = works.decode_due(self._universe, page)
        if found:
            read = await self._engine.read(*(works.get(each.pointer.at, each.pointer.intent) for each in found))
            batches: list[kv.Batch] = []
            for index, each in enumerate(found):
                try:
                    authority = works.decode(each.pointer.at, each.pointer.intent, read.value(index))
                except errors.Corrupt:
                    continue  # its worker reports it
                if not works.matches(each, authority):
                    batches.append(kv.Batch())
                    works.discard(batches[-1], each, authority)
            await self._commit("pointers", batches)
        self._pointer = found[-1].key if page.more else b""
        return not page.more

    async def _drop_orphans(self) -> None:
        """Held records of workers that have no heartbeat, for worlds that moved on: no other search finds them."""
        async for worker, life in worker_walk.WorkerWalk(self._engine):
            if life is None:
                await self._drop_held(worker)

    async def _drop_held(self, worker: ids.WorkerId) -> None:
        read = await self._engine.read(leases.held_range(worker, count_max=HELD_MAX), leases.get_heartbeat(worker))
        held = [each for each in leases.decode_held(worker, read.page(0)) if each[0].universe == self._universe]
        if not held or read.value(1) is not None:
            return
        read = await self._engine.read(*(get for at, _ in held for get in leases.reads(at)))
        batches: list[kv.Batch] = []
        for index, (at, epoch) in enumerate(held):
            try:
                state = leases.decode(at, *(read.value(3 * index + offset) for offset in range(3)))
            except errors.Corrupt as error:
                log.warning("world %s: what it was held by stays: %s", at.world.hex(), error)
                continue
            batch = kv.Batch()
            if leases.forget_held(batch, state, worker, epoch=epoch):
                batches.append(batch)
        await self._commit("held_records", batches)

    async def _forget_locks(self) -> int:
        """Lock files of dead workers. As long as a worker has anything in the store, its file proves its death."""
        forgotten = 0
        for worker in [] if self._locks is None else self._locks.dead():
            read = await self._engine.read(leases.get_heartbeat(worker), leases.held_range(worker, count_max=1))
            if self._locks is not None and read.value(0) is None and not read.page(1).items:
                self._locks.forget(worker)
                forgotten += 1
        return forgotten

    async def _commit(self, what: telemetry.Clearable, batches: list[kv.Batch]) -> None:
        """Whatever has changed since it was read stays. What was deleted is counted by keys and ranges."""
        outcomes = await transact.commit(self._engine, self._env, *batches)
        applied = [batch for batch, outcome in zip(batches, outcomes, strict=True) if isinstance(outcome, kv.Ok)]
        done = [batch for batch in applied if batch.deletes or batch.ranges]  # others have noted an age
        self.cleared += len(done)
        self._tell(what, sum(len(batch.deletes) + len(batch.ranges) for batch in done))

    def _count(self, what: telemetry.Clearable, count: int) -> None:
        self.cleared += count
        self._tell(what, count)

    def _tell(self, what: telemetry.Clearable, count: int) -> None:
        if count:
            self._telemetry.tell(telemetry.Cleared(what, count))
