"""Proving worlds in the background: the janitor's other task, in every process that runs worlds.

Steps of the worlds that this process holds are read back from the store and run through the code again, in a thread of
its own, as `worldline replay --prove` does (`worldline.runtime.step_prover`). What is not the same again shows code
that is not deterministic, before a crash or an edit makes it matter. Nothing of a world is changed: the first
difference is logged, counted, and said with the worker's heartbeat, where `worldline why` finds it.

One world after the other: from where it was proved to before, or from the last snapshot below its head, up to the head
as it was then. Work is done in slices, within a budget: so many milliseconds of each minute, which the thread was at
work. A slice waits while cycles are under way, for a while. A proof that falls too far behind its world skips what is
below the last snapshot.

A slice whose code does not return is left behind: it is said like a difference, and nothing more is proved here. The
thread keeps no process alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from worldline.base import errors, limits
from worldline.base.bounded_map import BoundedMap
from worldline.codec import printable
from worldline.kernel import replay, user_errors
from worldline.kernel.authoring.program import Program
from worldline.layers.history import journal_pages, saved_state, step_reader
from worldline.model import ids, journal
from worldline.runtime import daemon_threads, placement, role_loop, world_reader, world_restore
from worldline.runtime import facts as telemetry
from worldline.runtime.holder_job import Divergence, HolderContext, HolderJob
from worldline.runtime.personal import store_vault as vaults
from worldline.runtime.step_prover import Cold, PersonalValuePlace, Prover
from worldline.worker import no_asyncio

log = printable.logger("worldline.janitor")

MINUTE_MS = 60_000
SLICE_US = 20_000  # a slice ends with the first step that ends behind this
FIRST_US = 50_000  # what must have been saved of the budget before the first slice
SAVED_US_MAX = 200_000  # more of the budget is not saved up
PAGE_BYTES = 64 * 1024  # of the journal, read at once
CELLS_BYTES_MAX = 16 * limits.MIB  # of a world that is proved, in memory; of a larger one the cells stay in the store
BACKLOG_MAX = 20_000  # entries that a proof is behind its world before it skips some
IDLE_MS = 1_000  # between two looks for worlds with new steps
BUSY_MS = 100  # between two looks whether cycles are under way
BUSY_LOOKS_MAX = 50
REST_MS_MAX = 10_000
REMEMBERED_MAX = 10_000  # worlds whose proved heights are kept
FOUND_MAX = 1_000
LABELS_MAX = 8  # said with the heartbeat: `diverged:WORLD=WHAT`
LABEL_BYTES_MAX = 340
assert LABELS_MAX * (LABEL_BYTES_MAX + 64) <= limits.JOB_LABELS_BYTES_MAX

T = TypeVar("T")


class Candidate(msgspec.Struct, frozen=True):
    """A world that this process holds, and the height of its head."""

    at: ids.Address
    name: str
    program: Program
    height: int


class _Visit:
    """One proof under way, up to the height `top`."""

    def __init__(self, candidate: Candidate, pages: journal_pages.Pages, prover: Prover) -> None:
        self.candidate = candidate
        self.at = candidate.at
        self.top = candidate.height
        self.prover = prover
        self.pages = pages
        self.steps: list[step_reader.StoredStep] = []  # that were read and not taken yet
        self.loaded: dict[bytes, bytes] = {}  # the blobs that these need

    def read(self, steps: list[step_reader.StoredStep], loaded: dict[bytes, bytes]) -> None:
        self.steps, self.loaded = steps, loaded

    def took(self, count: int) -> None:
        del self.steps[:count]

    def decode(
        self, items: Sequence[step_reader.Item]
    ) -> tuple[list[step_reader.StoredStep], list[journal.JournalEntry]]:
        """The steps in a page, up to the top; and those of their entries that name a blob."""
        steps = [each for each in self.pages.reader.take(items) if each.height <= self.top]
        return steps, [entry for step in steps for entry in step.entries() if _names_blob(entry)]


def _names_blob(entry: journal.JournalEntry) -> bool:
    if entry.blob or entry.kind not in journal.INPUTS or not entry.payload:
        return bool(entry.blob)
    carried = replay.payload_of(entry)
    return carried is not None and carried.ref is not None


def _cut(message: str) -> str:
    return message.encode()[:LABEL_BYTES_MAX].decode(errors="ignore")


class _Escaped(Exception):
    """Something other than an error of ours came out of the thread."""


class Proofs(HolderJob):
    """A role of its own."""

    def __init__(self, context: HolderContext) -> None:
        assert context.settings.janitor.prove_ms > 0, "without a budget there are no proofs"
        self._engine = context.engine
        self._env = context.env
        self._blobs = context.blobs
        self._programs = {program.hash: program for program in context.programs}
        self._parts = context.parts
        self._worker = context.worker
        self._thread = daemon_threads.DaemonPool(1, "worldline-proofs", no_asyncio.refuse_asyncio)
        self._prove_ms = context.settings.janitor.prove_ms
        self._hang_us = context.settings.hang_ms * 1000
        self._telemetry = context.telemetry
        self.loop = role_loop.Loop("proofs", self.tick, context.env, wake=self.wake, telemetry=context.telemetry)
        self._woken = asyncio.Event()
        self._began_us = context.env.monotonic_us()
        # So that the first slice begins when FIRST_US have been earned.
        self._spent_us = FIRST_US - SLICE_US
        self._looks = 0  # in a row that found cycles under way
        self._idle = False  # no world had new steps
        self._over = False  # it was closed, or a slice does not return
        self._work: asyncio.Task[None] | None = None  # the slice under way
        self._work_us = 0  # since when
        self._visit: _Visit | None = None
        self._last: ids.Address | None = None  # the world that was proved last
        self._proved: BoundedMap[ids.Address, int] = BoundedMap(REMEMBERED_MAX)  # up to which height
        self._told: dict[ids.Address, None] = {}  # worlds that cannot be proved here, and it was said
        self.diverged: BoundedMap[ids.Address, Divergence] = BoundedMap(FOUND_MAX)

    def _worlds(self) -> list[Candidate]:
        """Those that are held here, as they stand now."""
        return [Candidate(each.at, each.name, each.program, each.head.height) for each in self._worker.held]

    def labels(self) -> dict[str, str]:
        latest = list(self.diverged.items())[-LABELS_MAX:]
        return {placement.diverged_label(at): _cut(each.message) for at, each in latest}

    def wake(self) -> None:
        self._woken.set()

    async def close(self) -> None:
        """Nothing is waited for: a slice under way ends behind its step, and what it found is forgotten."""
        self._over = True
        if self._work is not None:
            self._work.cancel()
        if self._visit is not None:
            # In the thread, behind a slice that is still under way: the prover belongs to it.
            self._thread.submit(self._visit.prover.close)
            self._visit = None
        self._thread.shutdown(wait=False)

    # --- Turns -------------------------------------------------------------------------------------------------

    async def tick(self) -> None:
        """One slice, if the budget has room for it, or a rest. A slice that is under way keeps no one from stopping."""
        self._woken.clear()
        if self._work is None:
            rest_ms = REST_MS_MAX if self._over else self._rest_ms()
            if rest_ms:
                await self._wait(rest_ms)
                return
            self._work_us = self._env.monotonic_us()
            self._work = asyncio.get_running_loop().create_task(self._slice(), name="a slice of a proof")
        await self._wait(IDLE_MS, self._work)
        if self._work.done():
            work, self._work = self._work, None
            work.result()
        elif self._env.monotonic_us() - self._work_us > self._hang_us and not self._over:
            self._give_up()

    async def _wait(self, most_ms: int, *also: asyncio.Task[None]) -> None:
        woken = asyncio.get_running_loop().create_task(self._woken.wait())
        try:
            async with self._env.timeout(most_ms / 1000):
                await asyncio.wait([woken, *also], return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            pass  # that is how a rest ends
        finally:
            woken.cancel()

    def _rest_ms(self) -> int:
        """How long to rest before the next slice; 0 if it may begin."""
        earned_us = (self._env.monotonic_us() - self._began_us) * self._prove_ms // MINUTE_MS
        # What was not used is not saved up without bound: it would be used at one time.
        self._spent_us = max(self._spent_us, earned_us - SAVED_US_MAX)
        missing_us = SLICE_US - (earned_us - self._spent_us)
        if missing_us > 0:
            return min(REST_MS_MAX, 1 + missing_us * MINUTE_MS // self._prove_ms // 1000)
        if self._idle:
            self._idle = False
            return IDLE_MS
        self._looks = self._looks + 1 if self._worker.under_way() else 0
        # For a while only: in a process that is always busy, worlds are proved, too.
        if 0 < self._looks <= BUSY_LOOKS_MAX:
            return BUSY_MS
        self._looks = 0
        return 0

    async def _slice(self) -> None:
        """One part of the proof under way, or of the next."""
        try:
            if self._visit is None:
                self._visit = await self._begin()
            if self._visit is None:
                self._idle = True
                return
            await self._go_on(self._visit)
        except errors.StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - user code runs, and what comes of it must not end a role
            self._cannot(error)

    async def _begin(self) -> _Visit | None:
        """The next world with steps that were not proved, round about."""
        # In the order of addresses, from the last one on: each world gets its turn.
        worlds = sorted(self._worlds(), key=lambda each: each.at)
        last = self._last
        later = [each for each in worlds if last is None or each.at > last]
        for each in [*later, *worlds[: len(worlds) - len(later)]]:
            known = self.diverged.get(each.at)
            if known is not None and known.program_hash != each.program.hash:
                del self.diverged[each.at]  # the code has changed since
                self._proved.pop(each.at, None)
            elif known is not None:
                continue
            if self._proved.get(each.at, 0) < each.height:
                self._last = each.at
                return await self._visit_of(each)
        return None

    async def _visit_of(self, each: Candidate) -> _Visit:
        proved = self._proved.get(each.at, each.height - 1)
        line = await world_reader.line_of(self._engine, each.at)
        saved = await world_reader.saved_below(self._engine, line, proved)
        dropped = saved.height < await journal_pages.changes_above(self._engine, line)
        # Too far behind, or over steps whose changes were dropped: the latest steps are the ones worth proving.
        if each.height - saved.height > BACKLOG_MAX or dropped:
            saved = await world_reader.saved_below(self._engine, line, each.height - 1)
        first = max(saved.height, self._proved.get(each.at, 0))
        blobs = self._blobs(each.at.universe)
        base = await saved_state.load(blobs, saved.root, cells_max=CELLS_BYTES_MAX)
        head, rows = await self._run(world_restore.standing, saved, base)
        cold = Cold.of(blobs, base, CELLS_BYTES_MAX) if base.cold else None
        pages = journal_pages.Pages(self._engine, blobs, line, above=head.height)
        vault = await vaults.vault_of(self._engine, self._env, line)
        sealed = PersonalValuePlace(vault, await vault.has_erased())
        prover = Prover(line, self._programs, head, rows, folded_to=first, cold=cold, sealed=sealed, parts=self._parts)
        return _Visit(each, pages, prover)

    async def _go_on(self, visit: _Visit) -> None:
        if not visit.steps:
            items = await visit.pages.items(bytes_max=PAGE_BYTES)
            if not items:
                self._end(visit)  # nothing more is there up to the top
                return
            steps, entries = await self._run(visit.decode, items)
            loaded: dict[bytes, bytes] = {}
            blobs = self._blobs(visit.at.universe)
            steps = await world_restore.load_changes(blobs, steps, loaded)
            visit.read(steps, loaded | await world_restore.load_referenced(blobs, entries))
        prover, proved, spent_us = visit.prover, visit.prover.proved, self._spent_us
        visit.took(await self._run(self._take, visit))
        self._telemetry.tell(telemetry.Proved(visit.at, prover.proved - proved, self._spent_us - spent_us))
        if prover.difference is not None:
            self._diverged(visit, prover.difference.height, f"the code does not do the same again {prover.difference}")
        if prover.difference is not None or prover.head.height >= visit.top:
            self._end(visit)

    def _take(self, visit: _Visit) -> int:
        """In the thread."""
        until_us = self._env.monotonic_us() + SLICE_US
        return visit.prover.take(
            visit.steps, visit.loaded, until=lambda: self._over or self._env.monotonic_us() >= until_us
        )

    async def _run(self, do: Callable[..., T], *arguments: Any) -> T:
        """In the thread; the time that it takes is counted."""

        def timed() -> tuple[T | BaseException, int, bool]:
            began_us = self._env.monotonic_us()
            try:
                done: T | BaseException = do(*arguments)
                failed = False
            except BaseException as error:  # noqa: BLE001 - user code may raise what would end the process here
                done, failed = error, True
            return done, self._env.monotonic_us() - began_us, failed

        found, us, failed = await asyncio.get_running_loop().run_in_executor(self._thread, timed)
        self._spent_us += us
        if failed:
            assert isinstance(found, BaseException)
            raise _Escaped(user_errors.message_of(found)) from found
        return found  # type: ignore[return-value]

    # --- What comes of it --------------------------------------------------------------------------------------

    def _end(self, visit: _Visit) -> None:
        self._visit = None
        self._remember(visit.at, visit.top)
        self._thread.submit(visit.prover.close)

    def _remember(self, at: ids.Address, height: int) -> None:
        self._proved[at] = height

    def _diverged(self, visit: _Visit, height: int, message: str) -> None:
        """Say it once, and leave the world alone until its code changes."""
        name = visit.candidate.name
        self.diverged[visit.at] = Divergence(name, height, message, visit.candidate.program.hash)
        log.error(
            "world %s (%s) goes on, but its journal could not be proved: %s; `worldline replay %s --prove` shows it",
            name,
            visit.at.world.hex(),
            message,
            name,
            extra=telemetry.about(visit.at, name=name),
        )
        self._telemetry.tell(telemetry.Unproved(visit.at, name, height, message))

    def _cannot(self, error: Exception) -> None:
        """The world is not proved here, now. That says nothing about its code: a blob may be missing, or memory."""
        visit, at = self._visit, self._last
        if visit is not None:
            self._end(visit)
        elif at is not None:
            self._remember(at, max((each.height for each in self._worlds() if each.at == at), default=0))
        if at is not None and at not in self._told and len(self._told) < FOUND_MAX:
            self._told[at] = None
            log.warning("world %s is not proved here: %s", at.world.hex(), error, extra=telemetry.about(at))

    def _give_up(self) -> None:
        """A slice does not return: the thread is left behind."""
        self._over = True
        if self._visit is not None:
            height = self._visit.prover.head.height + 1
            seconds = self._hang_us // 1_000_000
            self._diverged(
                self._visit, height, f"its code did not return for {seconds} s when it was run again at height {height}"
            )
        log.error("nothing more is proved in this process: the thread for it does not return")


def proofs(context: HolderContext) -> Proofs | None:
    """Worlds are proved where they are run, unless that is switched off."""
    return Proofs(context) if context.settings.janitor.prove_ms else None
