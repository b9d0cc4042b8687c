"""Watching a world from outside: its entries as they are committed, and its state at any height.

Nothing here writes. A reader needs no lease and disturbs no writer; it reads rows and changes, keeps the rows, and
catches up with what has been added since. Of a state in the past, single rows can be read at the cost of these
(`Past`).
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

from worldline.base import errors
from worldline.kernel import state_rows
from worldline.kernel.authoring.program import Program
from worldline.kernel.machine import Machine
from worldline.keys import snapshots as snapshot_keys
from worldline.layers import blobs as blob_layer
from worldline.layers import journal as journals
from worldline.layers import snapshots as snapshot_layer
from worldline.layers import worlds
from worldline.layers.history import history_line, journal_pages, saved_state, step_reader
from worldline.layers.history.known_rows import KnownRows
from worldline.layers.history.row_overlay import Overlay
from worldline.model import ids, journal
from worldline.model import snapshots as snapshot_model
from worldline.model.rows import Rows
from worldline.model.trie.nodes import Header, path_of
from worldline.runtime import world_restore
from worldline.store import kv, paging

WAIT_MS = 1_000
SNAPSHOTS_PAGE = 100
NAMED_MAX = 8  # heights in one message
LOOKUPS_MAX = 1_000  # keys whose paths are followed at once

T = TypeVar("T")


async def head(engine: kv.Engine, at: ids.Address) -> journal.Head:
    """Where its journal ends. `NotFound` if it is deleted, also while what it had is being removed."""
    read = await engine.read(journals.get_head(at), worlds.get(at))
    worlds.decode(at, read.value(1))
    return journals.decode_head(read.value(0))


async def entries(
    engine: kv.Engine, blobs: blob_layer.Blobs, at: ids.Address, *, above: int
) -> AsyncIterator[journal.JournalEntry | None]:
    """Every entry above a height, and those to come. None now and then, when nothing has come for a while."""
    line = await line_of(engine, at)
    while True:
        if above < line.forked_at:
            for entry in await world_restore.read_entries(engine, blobs, at, above=above, up_to=line.forked_at):
                above = entry.height
                yield entry
        read = await engine.read(
            journals.get_head(at),
            journals.read_range(at, above=above),
            journal_pages.segment_range(at, above=above),
            worlds.get(at),
        )
        # In the same read: a journal that is being removed must not look like one that has no more entries.
        if worlds.find(at, read.value(3)) is None:
            raise worlds.gone(at, read.value(3))
        top = journals.decode_head(read.value(0))
        old = step_reader.covering(at, read.page(2), above=above)
        # Compacted: these entries stand in a segment now, and no longer under keys of their own.
        if old is not None:
            for entry in await world_restore.read_entries(engine, blobs, at, above=above, up_to=old.last_height):
                above = entry.height
                yield entry
            continue
        if top.height <= above:
            if not await engine.wait(journals.get_head(at).key, read.seen, WAIT_MS):
                yield None
            continue
        for entry in journals.decode(at, read.page(1).items, above=above):
            above = entry.height
            yield entry


async def line_of(engine: kv.Engine, at: ids.Address) -> history_line.HistoryLine:
    """In whose journals a world's history stands."""
    return history_line.decode(at, (await engine.read(history_line.get(at))).value(0))


async def kept(engine: kv.Engine, at: ids.Address) -> journal_pages.RetainedRange:
    """From where on the entries of a world's history are kept."""
    return await journal_pages.kept(engine, await line_of(engine, at))


async def saved_below(engine: kv.Engine, line: history_line.HistoryLine, height: int) -> snapshot_model.StateSnapshot:
    """The latest snapshot at or below a height: the world's own, or one of those that it comes from."""
    return (await owned_below(engine, line, height))[0].record


async def owned_below(
    engine: kv.Engine, line: history_line.HistoryLine, height: int
) -> tuple[snapshot_layer.StoredSnapshot, ids.Address]:
    """The same, and whose it is."""
    for piece in reversed(line.owners()):
        if piece.above < height:
            found = await _saved_in(engine, piece.at, height if piece.up_to is None else min(height, piece.up_to))
            if found is not None and found.record.height > piece.above:
                return found, piece.at
    raise await not_retained(engine, line, height)


async def _saved_in(engine: kv.Engine, at: ids.Address, height: int) -> snapshot_layer.StoredSnapshot | None:
    """The latest snapshot of one world at or below a height. Steps are never above their heights, so later ones are
    skipped; most often there are none.
    """
    step, count = height, 1
    while True:
        read = await engine.read(snapshot_layer.latest_range(at, up_to=step, count_max=count))
        page = snapshot_layer.decode(at, read.page(0))
        found = next((each for each in page if each.record.height <= height), None)
        if found is not None or not read.page(0).more:
            return found
        # The first read was for the usual case; from here on whole pages are worth it.
        step, count = page[-1].record.step - 1, SNAPSHOTS_PAGE


async def not_retained(engine: kv.Engine, line: history_line.HistoryLine, height: int) -> errors.NotRetained:
    """The error that says which states of a history are kept, if that at a height is not."""
    above = await journal_pages.changes_above(engine, line)
    heights = [each.height for each in await records(engine, line)]
    first = next((each for each in heights if each >= above), above)
    below = [str(each) for each in heights if each < above][-NAMED_MAX:]
    also = f", and at height {', '.join(below)}" if below else ""
    return errors.NotRetained(height, f"its state is not kept any more: states are kept from height {first} on{also}")


async def records(engine: kv.Engine, line: history_line.HistoryLine) -> list[snapshot_model.StateSnapshot]:
    """Every snapshot of a history that is kept, earliest first."""
    found: list[snapshot_model.StateSnapshot] = []
    for piece in line.owners():
        async for page in paging.RangePages(engine, kv.Range(*snapshot_keys.snapshots(piece.at))):
            found += [
                saved.record
                for saved in snapshot_layer.decode(piece.at, page)
                if saved.record.height > piece.above and (piece.up_to is None or saved.record.height <= piece.up_to)
            ]
    return found


class Past:
    """A state at the end of a step, of which only the rows are read that are asked for: by their paths, from the last
    snapshot at or below it. `rows` are these, with what has changed between the snapshot and this step.

    What was not fetched must not be looked for in `rows`.
    """

    def __init__(
        self,
        engine: kv.Engine,
        blobs: blob_layer.Blobs,
        executor: Executor,
        saved: snapshot_model.StateSnapshot,
        header: Header,
    ) -> None:
        self._engine = engine
        self._blobs = blobs
        self._executor = executor
        self._saved = saved
        self.trie = header.root
        self._branches: dict[bytes, bytes] = {}
        self._known = KnownRows()
        self.rows = Overlay(self._known)
        self.head = snapshot_layer.head_of(saved, state=header.state)

    async def catch_up(self, line: history_line.HistoryLine, height: int) -> None:
        """Go from the snapshot to the last step end at or below a height."""
        async for steps, loaded in self.above(line, up_to=height):
            await self.fetch((await self.run(step_reader.named, steps)).bases)
            self.head = await self.run(step_reader.fold, self.head, steps, self.rows, loaded)

    async def above(
        self, line: history_line.HistoryLine, *, up_to: int
    ) -> AsyncIterator[tuple[list[step_reader.StoredStep], dict[bytes, bytes]]]:
        """The steps of a history above this state, page by page, with the blobs that their changes need."""
        pages = world_restore.step_pages(self._engine, self._blobs, line, above=self.head.height, up_to=up_to)
        try:
            async for page in pages:
                loaded: dict[bytes, bytes] = {}
                yield await world_restore.load_changes(self._blobs, page, loaded), loaded
        except errors.NotRetained as error:
            raise await not_retained(self._engine, line, error.height) from None

    async def fetch(self, keys: Iterable[bytes]) -> None:
        """Read the rows under these keys, those that are not known. Many are read in the order of their paths, so that
        neighbours in the trie come together.
        """
        wanted = self._known.missing(keys)
        if len(wanted) > LOOKUPS_MAX:
            wanted = await self.run(functools.partial(sorted, wanted, key=path_of))
        for start in range(0, len(wanted), LOOKUPS_MAX):
            page = wanted[start : start + LOOKUPS_MAX]
            try:
                found = await saved_state.lookup(self._blobs, self.trie, page, self._branches)
            except errors.Corrupt as error:
                raise errors.Corrupt(f"the snapshot at height {self._saved.height}: {error}") from error
            self._known.take(page, found)

    async def fetch_runs(self, runs: Sequence[str]) -> None:
        """Read how these runs began, their status and their operations."""
        for keys in self._known.look_for(runs):
            await self.fetch(keys)

    async def fetch_all_but_cells(self) -> None:
        """Read every row that is not a cell: there is no other way to all rows of a group."""
        if not self._known.has_all_but_cells:
            loaded = await saved_state.load(self._blobs, self._saved.root, cells_max=0)
            self._known.take_all_but_cells(await self.run(loaded.rows))

    async def fetch_unlike(self, other: Past) -> list[bytes]:
        """The keys of rows that may not be the same in another state of the same world, in their order; all others are.
        They are fetched in both. Costs what is different, and what has changed in both since their snapshots, however
        many steps lie between them.
        """
        found = await saved_state.changed(self._blobs, self.trie, other.trie, self.run)
        keys = dict.fromkeys(found)
        for each in (self, other):
            if each.rows.has_dropped:
                await each.fetch_all_but_cells()
            keys |= dict.fromkeys(each.rows.touched())
        for each in (self, other):
            await each.fetch(keys)
        return sorted(keys)

    async def run(self, do: Callable[..., T], *arguments: Any) -> T:
        """In the thread that is for it."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, do, *arguments)


class WorldReader:
    """The rows of one world, read only and kept up to date, and a machine that is made of them. No user code runs."""

    def __init__(
        self, engine: kv.Engine, blobs: blob_layer.Blobs, program: Program, at: ids.Address, executor: Executor
    ) -> None:
        self._engine = engine
        self._blobs = blobs
        self._program = program
        self._at = at
        self._executor = executor
        self._rows: Rows | None = None
        self._machine: Machine | None = None
        self._head = journal.GENESIS
        # Rows, machine and head are of one height: two calls that read at once would mix what they read.
        self._lock = asyncio.Lock()

    def use(self, program: Program) -> None:
        """From here on machines are made with this program."""
        if program is not self._program:
            self._program = program
            self._forget()

    async def latest(self) -> tuple[Machine, journal.Head]:
        """The machine at the journal's head."""
        async with self._lock:
            await self._read()
            if self._machine is None:
                assert self._rows is not None
                self._machine = await self._run(self._made, self._head, self._rows)
            return self._machine, self._head

    async def rows(self) -> tuple[Rows, journal.Head]:
        """The rows at the journal's head. They change with the next call."""
        async with self._lock:
            await self._read()
            assert self._rows is not None
            return self._rows, self._head

    async def at_height(self, height: int) -> tuple[Machine, journal.Head]:
        """A machine of its own at the last step end at or below a height."""
        rows, after = await self.rows_at(height)
        return await self._run(self._made, after, rows), after

    async def past(self, height: int) -> Past:
        """The last step end at or below a height, of which single rows can be read."""
        await self._check(height)
        line = await line_of(self._engine, self._at)
        saved = await saved_below(self._engine, line, height)
        header = await saved_state.header_of(self._blobs, saved.root)
        found = Past(self._engine, self._blobs, self._executor, saved, header)
        try:
            await found.catch_up(line, height)
        except errors.NotRetained:
            raise await not_retained(self._engine, line, height) from None
        return found

    async def _check(self, height: int) -> None:
        top = await head(self._engine, self._at)
        if not 0 <= height <= top.height:
            raise errors.BadInput(f"no height {height}: the journal's head is at height {top.height}")

    async def rows_at(self, height: int) -> tuple[Rows, journal.Head]:
        """The rows at the last step end at or below a height."""
        await self._check(height)
        line = await line_of(self._engine, self._at)
        baseline = await saved_below(self._engine, line, height)
        try:
            material = await world_restore.gather(self._engine, self._blobs, self._at, baseline=baseline, up_to=height)
        except errors.NotRetained:
            raise await not_retained(self._engine, line, height) from None
        after, rows = await self._run(world_restore.fold, material)
        return rows, after

    async def _read(self) -> None:
        """Bring the rows up to the journal's head."""
        top = await head(self._engine, self._at)
        # A journal that is shorter than what was read is not the same one any more.
        if self._rows is None or top.height < self._head.height:
            material = await world_restore.gather(self._engine, self._blobs, self._at)
            self._forget()
            self._head, self._rows = await self._run(world_restore.fold, material)
        elif top.height > self._head.height:
            try:
                await self._catch_up(self._rows, top)
            except errors.NotRetained:  # it was compacted further than we had read
                self._rows = None
                await self._read()

    async def _catch_up(self, rows: Rows, top: journal.Head) -> None:
        line = history_line.HistoryLine(self._at)  # what was read reaches into its own journal
        steps = await world_restore.read_steps(
            self._engine, self._blobs, line, above=self._head.height, up_to=top.height
        )
        loaded: dict[bytes, bytes] = {}
        steps = await world_restore.load_changes(self._blobs, steps, loaded)
        self._rows = None  # until it is known to have worked
        after = await self._run(step_reader.fold, self._head, steps, rows, loaded)
        self._forget()
        self._head, self._rows = after, rows

    def _made(self, at: journal.Head, rows: Rows) -> Machine:
        return state_rows.machine_of(self._program, at.state, rows.items(), self._at)

    async def _run(self, do: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, do, *arguments)

    def _forget(self) -> None:
        if self._machine is not None:
            self._machine.close()
            self._machine = None

    def close(self) -> None:
        self._forget()
        self._rows = None
