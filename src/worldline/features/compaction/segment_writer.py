"""Writing one segment: read frames, compress their steps, put the body away, read it back and check it.

A segment ends where a frame and a step end. It is cut by the number of its entries, by its bytes and by the number of
its frames, which one batch deletes. The digest of what each step changed is worked out without the state (`covered`),
and shown to be right by the chain. What was written is read back from where it is, decoded, and its chain recomputed
from the chain before it; only then may it be indexed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from worldline.base import env as envs
from worldline.base import errors, limits, probes
from worldline.layers import blobs as blob_layer
from worldline.layers.history import history_line, journal_pages, segment_body, step_reader
from worldline.layers.history.saved_state import Compute
from worldline.model import ids, journal
from worldline.runtime import world_restore
from worldline.store import kv

PAGE_BYTES = 256 * limits.KIB  # read and worked on at once
REST_TIMES = 3  # how much longer it rests than it has worked
REST_SECONDS_MAX = 0.25


class WrittenSegment(msgspec.Struct, frozen=True):
    """A segment in the CAS, checked and not indexed. `head`: that of its last step; `frames`: whose place it takes."""

    record: journal.Segment
    head: journal.Head
    frames: int
    body: bytes


class SegmentWriter:
    """Of one world's journal. `compute` calls a function in a thread that is for it. `is_over`, `is_late`: whether to
    stop, or not to rest; asked now and then. `age_us`: of the universe, which segments are noted with.
    """

    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        blobs: blob_layer.Blobs,
        line: history_line.HistoryLine,
        compute: Compute,
        *,
        with_changes: bool,
        is_over: Callable[[], bool] = lambda: False,
        is_late: Callable[[], bool] = lambda: False,
        age_us: int = 0,
    ) -> None:
        self._engine = engine
        self._env = env
        self._blobs = blobs
        self._line = line
        self._compute = compute
        self._with_changes = with_changes
        self._is_over = is_over
        self._is_late = is_late
        self._age_us = age_us

    async def write(self, start: journal.Head, *, up_to: int, entries_max: int) -> WrittenSegment | None:
        """The next segment above a head. None if no frame ends at or below the height `up_to` together with a step."""
        building = _Building(start, with_changes=self._with_changes)
        pages = journal_pages.Pages(self._engine, self._blobs, self._line, above=start.height)
        while not building.is_full(up_to, entries_max) and pages.reader.height < up_to:
            items = await pages.items(bytes_max=PAGE_BYTES)
            if not items:
                raise errors.DecodeError(f"height {pages.reader.height + 1} is missing")
            began_us = self._env.monotonic_us()
            for item in items:
                building.read(pages.reader.take([item]))
                # A frame beyond the end is not part of it: what was read of it is left waiting, and thrown away.
                if pages.reader.height > up_to:
                    break
                if pages.reader.is_between_steps and building.end_value(pages.reader.height, up_to, entries_max):
                    break
            loaded: dict[bytes, bytes] = {}
            whole = await world_restore.load_changes(self._blobs, building.ready, loaded)
            # In the thread for it: linking and compressing would keep the event loop from the steps of worlds.
            await self._compute(building.add, whole, loaded)
            await self._rest(began_us)
        if not building.frames:
            return None
        body = await self._compute(building.writer.body)
        return await self._put(building, body)

    async def _put(self, building: _Building, body: bytes) -> WrittenSegment:
        """Put the body away, and trust nothing but what is read back."""
        before, after = building.before, building.head
        address = await self._blobs.put(body)
        record = journal.Segment(
            before.height + 1,
            after.height,
            before.step + 1,
            after.step,
            address,
            len(body),
            self._with_changes,
            self._age_us,
        )
        # Trusted only when it was read back: the frames are deleted for it.
        await self.check(record, before, after)
        return WrittenSegment(record, after, building.frames, body)

    async def check(self, record: journal.Segment, start: journal.Head, after: journal.Head) -> None:
        """Read a segment back: it must lead from one head to the other."""
        body = await journal_pages.load(self._blobs, self._line.at, record)
        checking = _Checking(self._line, start, body)
        while True:
            began_us = self._env.monotonic_us()
            if not await self._compute(checking.next):
                break
            await self._rest(began_us)
        if checking.head != after:
            raise errors.DecodeError(
                f"the segment up to height {after.height} does not lead to the step that it ends with"
            )

    async def _rest(self, began_us: int) -> None:
        """Leave most of the time to others, unless compaction cannot keep up with them so. `Closed` if it is not to go
        on.
        """
        if self._is_over():
            raise errors.Closed("the compaction was stopped")
        if self._is_late():
            probes.hit("compaction.is-late")
            await self._env.sleep(0)
            return
        worked = (self._env.monotonic_us() - began_us) / 1_000_000
        await self._env.sleep(min(REST_SECONDS_MAX, REST_TIMES * worked))


class _Building:
    """A segment under way. What was read of a frame or a step that has not ended is `waiting`; what has ended, and is
    not in the body yet, is `ready`.
    """

    def __init__(self, start: journal.Head, *, with_changes: bool) -> None:
        self.before = self.head = start
        self.writer = segment_body.SegmentBuilder(
            above=start.height, step=start.step, chain=start.chain, with_changes=with_changes
        )
        self.ready: list[step_reader.StoredStep] = []
        self._waiting: list[step_reader.StoredStep] = []
        self._values = 0  # that these are from
        self._height = start.height  # of what is ready
        self._bytes = 0
        self.frames = 0

    def read(self, steps: Sequence[step_reader.StoredStep]) -> None:
        self._waiting += steps
        self._values += 1
        if any(each.dropped for each in steps):
            raise errors.DecodeError(f"height {steps[0].first_height} is in a segment already")

    def end_value(self, height: int, up_to: int, entries_max: int) -> bool:
        """A frame and a step end here: what was read belongs to the segment. Whether it is full now."""
        self.ready += self._waiting
        self._bytes += sum(map(len, (data for step in self._waiting for data in (*step.data, step.changes))))
        self.frames += self._values
        self._height = height
        self._waiting, self._values = [], 0
        return self.is_full(up_to, entries_max)

    def is_full(self, up_to: int, entries_max: int) -> bool:
        return (
            self._height >= up_to
            or self._height - self.before.height >= entries_max
            or self._bytes >= limits.SEGMENT_BYTES_MAX
            or self.frames >= limits.SEGMENT_FRAMES_MAX
        )

    def add(self, whole: Sequence[step_reader.StoredStep], loaded: dict[bytes, bytes]) -> None:
        """Put what is ready into the body. `whole`: the same, with changes in place that are stored apart."""
        # `whole` has the blobs in place for the digest; the body keeps the changes as they are stored.
        for step, known in zip(self.ready, whole, strict=True):
            covered = step_reader.covered(known, loaded)
            self.head = step_reader.link(self.head, step, covered)
            self.writer.add(segment_body.SegmentStep(step.step, step.height, step.data, covered, step.changes))
        self.ready = []


class _Checking:
    """A body, gone through block by block, its chain recomputed."""

    def __init__(self, line: history_line.HistoryLine, start: journal.Head, body: segment_body.Body) -> None:
        self.head = start
        self._reader = step_reader.StepReader(line, above=start.height)
        self._blocks = body.blocks(above=start.height)
        if body.chain != start.chain:
            raise errors.DigestMismatch("the chain before a segment", expected=start.chain, actual=body.chain)

    def next(self) -> bool:
        """Whether there was a block."""
        block = next(self._blocks, None)
        if block is None:
            return False
        covered = iter(block.covered)
        for step in self._reader.take([block]):
            self.head = step_reader.link(self.head, step, next(covered))
        return True


async def head_at(engine: kv.Engine, blobs: blob_layer.Blobs, at: ids.Address, height: int) -> journal.Head:
    """The head that the world's history had at a height, which is the end of a step."""
    if not height:
        return journal.GENESIS
    [last] = await journal_pages.entries(engine, blobs, at, above=height - 1, up_to=height)
    if not last.chain:
        raise errors.DecodeError(f"height {height} is not the end of a step")
    return journal.Head(last.step, last.height, last.chain, last.state, last.time_us)
