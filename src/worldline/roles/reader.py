"""Watching a world from outside: its entries as they are committed, and its state at any height.

Nothing here writes. A reader needs no lease and disturbs no writer; it reads the journal, and restores a machine of its
own that it keeps warm and catches up with what has been added since.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Executor

from worldline.base import errors
from worldline.kernel import replay
from worldline.kernel.authoring.program import Program
from worldline.kernel.state import Machine
from worldline.layers import blobs as blob_layer
from worldline.layers import journal as journals
from worldline.layers import snapshots as snapshot_layer
from worldline.model import ids, journal, payload
from worldline.model import snapshot as snapshot_model
from worldline.roles import restore
from worldline.store import kv

WAIT_MS = 1_000
SNAPSHOTS_PAGE = 100


async def head(engine: kv.Engine, at: ids.Address) -> journal.Head:
    return journals.decode_head((await engine.read(journals.get_head(at))).value(0))


async def entries(engine: kv.Engine, at: ids.Address, *, above: int) -> AsyncIterator[journal.Entry | None]:
    """Every entry above a height, and those to come. None now and then, when nothing has come for a while."""
    while True:
        read = await engine.read(journals.get_head(at), journals.read_range(at, above=above))
        top = journals.decode_head(read.value(0))
        if top.height <= above:
            if not await engine.wait(journals.get_head(at).key, read.seen, WAIT_MS):
                yield None
            continue
        for entry in journals.decode(at, read.page(1).items, above=above):
            above = entry.height
            yield entry


class Reader:
    """A read-only machine of one world, kept warm."""

    def __init__(
        self, engine: kv.Engine, blobs: blob_layer.Blobs, program: Program, at: ids.Address, executor: Executor
    ) -> None:
        self._engine = engine
        self._blobs = blobs
        self._program = program
        self._at = at
        self._executor = executor
        self._machine: Machine | None = None
        self._head = journal.GENESIS
        self._lock = asyncio.Lock()

    async def latest(self) -> tuple[Machine, journal.Head]:
        """The machine at the journal's head."""
        async with self._lock:
            top = await head(self._engine, self._at)
            if self._machine is None or top.height < self._head.height:
                restored = await restore.restore(self._engine, self._blobs, self._program, self._at, self._executor)
                self._machine, self._head = restored.machine, restored.head
            elif top.height > self._head.height:
                await self._catch_up(top)
            return self._machine, self._head

    async def at_height(self, height: int) -> tuple[Machine, journal.Head]:
        """A machine of its own at the last step end at or below a height."""
        top = await head(self._engine, self._at)
        if not 0 <= height <= top.height:
            raise errors.BadInput(f"no height {height}: the journal's head is at height {top.height}")
        baseline = await self._saved_below(height)
        material = await restore.gather(self._engine, self._blobs, self._at, baseline=baseline, up_to=height)
        restored = await asyncio.get_running_loop().run_in_executor(
            self._executor, restore.build, material, self._program
        )
        return restored.machine, restored.head

    async def _saved_below(self, height: int) -> snapshot_model.Snapshot:
        """The latest snapshot at or below a height. Steps are never above their heights, so later ones are skipped."""
        step = height
        while True:
            read = await self._engine.read(snapshot_layer.latest_range(self._at, up_to=step, count_max=SNAPSHOTS_PAGE))
            page = snapshot_layer.decode(self._at, read.page(0))
            found = next((each.record for each in page if each.record.height <= height), None)
            if found is not None:
                return found
            if not read.page(0).more:
                raise errors.NotFound(f"no snapshot at or below height {height} is kept, so its state cannot be read")
            step = page[-1].record.step - 1

    async def _catch_up(self, top: journal.Head) -> None:
        machine = self._machine
        assert machine is not None
        added = await restore.read_entries(self._engine, self._at, above=self._head.height, up_to=top.height)
        loaded = await restore.load_referenced(self._blobs, added)

        def load(carried: payload.Payload) -> bytes:
            return carried.inline if carried.inline is not None else loaded[carried.ref or b""]

        def run() -> None:
            for each in replay.steps(added):
                replay.check(machine, [restore.filled(entry, loaded) for entry in each], self._at, load)

        self._machine = None  # until it is known to have worked
        await asyncio.get_running_loop().run_in_executor(self._executor, run)
        self._machine, self._head = machine, top

    def close(self) -> None:
        if self._machine is not None:
            self._machine.close()
            self._machine = None
