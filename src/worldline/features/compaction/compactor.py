"""Compacting one world, by its holder: segments for its oldest frames, and snapshots that nothing needs dropped.

::

    survey   policy, baseline, snapshots, last segment, pins; no mark is under way   one read, seldom more
    write    frames -> body -> CAS -> read back, checked (`segment_writer.py`)       nothing of the world has changed
    move     expect epoch, baseline, pins; index the body, delete its frames  one batch: all of it, or nothing
    drop     expect the same; delete old snapshots' records                   one batch
    expire   expect the same; delete old segments' records (`segment_expiry.py`)    one batch, if they are not kept for
    ever

It can be cut off anywhere. A body that was not indexed is garbage; the next attempt puts the same bytes again. A batch
that conflicts with a fork's pin is given up, and decided again behind the next snapshot. While a garbage collection
marks, neither frames nor snapshots go: it is waited for (`features/collection/mark_barrier.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from worldline.base import env as envs
from worldline.base import errors, probes
from worldline.base.bounded_map import BoundedMap
from worldline.features.collection import mark_barrier
from worldline.features.compaction import batches, retention_rules, segment_expiry, segment_writer
from worldline.features.compaction.retention_rules import KnownPast, RetentionPolicy
from worldline.features.compaction.universe_retention import Policies
from worldline.keys import journal as journal_keys
from worldline.keys import segments as segment_keys
from worldline.keys import snapshots as snapshot_keys
from worldline.layers import age, leases, snapshots, universe_settings, universes
from worldline.layers import blobs as blob_layer
from worldline.layers import journal as journals
from worldline.layers.history import history_line, segment_index
from worldline.layers.history.saved_state import Compute
from worldline.model import ids, journal
from worldline.model.age import Age
from worldline.model.snapshots import StateSnapshot
from worldline.runtime.holder_job import SupersededSnapshots
from worldline.store import kv, paging, transact

PAGE = 1_000  # of snapshots, and of pins
KEPT_MAX = 200  # snapshots of one world that are looked through whenever one is taken
SEGMENT_ENTRIES = 50_000  # of a world that is compacted by hand alone
BEHIND_SEGMENTS = 2  # of one world; with more of them to write, compaction does not rest


class CompactionResult(msgspec.Struct, frozen=True):
    """What was done. `height`: up to where entries are in segments now; `held_back`: forks keep it from going further;
    `expired`: entries that are not kept any more.
    """

    height: int
    segments: int = 0
    entries: int = 0
    frames: int = 0
    bytes: int = 0
    snapshots: int = 0
    held_back: bool = False
    expired: int = 0


class Survey(msgspec.Struct, frozen=True):
    """What there is, and what must be so still when something of it is deleted."""

    known: KnownPast
    expected: batches.Expected
    last: segment_index.Indexed | None
    line: history_line.HistoryLine
    forked: journal.Head | None  # of a fork: the head that its own journal begins behind
    epoch_raw: bytes | None
    settings: universe_settings.UniverseSettingsRecord
    now: Age


async def survey(engine: kv.Engine, at: ids.Address, unmarked: bytes | None = None) -> Survey:
    """Read what decides what may be compacted. The count of pins is read first: pins that come later move it.
    `unmarked`: the generation, as it was when no mark was under way, for a caller that is going to write.
    """
    pages = [kv.Range(*snapshot_keys.snapshots(at), count_max=PAGE), snapshots.pins_range(at, count_max=PAGE)]
    read = await engine.read(
        snapshots.get_baseline(at),
        snapshots.get_pin_count(at),
        history_line.get(at),
        segment_index.last_range(at),
        leases.reads(at)[0],
        age.get(at.universe),
        universe_settings.get(at.universe),
        *pages,
    )
    baseline_raw = read.value(0)
    baseline = snapshots.decode_baseline(baseline_raw)
    assert baseline_raw is not None
    lineage = history_line.decode_lineage(read.value(2))
    line = history_line.line_of(at, lineage)
    last = segment_index.decode_last(at, read.page(3))
    # Later pages are read after the count of pins: a pin that comes between changes it, and the batch conflicts.
    saved_pages = await _whole(engine, pages[0], read.page(7))
    pin_pages = await _whole(engine, pages[1], read.page(8))
    saved = [each for page in saved_pages for each in snapshots.decode(at, page)]
    pinned = [pin.snapshot for page in pin_pages for _, pin in snapshots.decode_pins(at, page)]
    known = KnownPast(
        baseline, saved, None if last is None else last.record, line.forked_at, tuple(dict.fromkeys(pinned))
    )
    expected = batches.Expected(baseline_raw, read.value(1), universes.GenerationRecord(at.universe, unmarked))
    return Survey(
        known,
        expected,
        last,
        line,
        history_line.forked_head(lineage),
        read.value(4),
        universe_settings.decode(at.universe, read.value(6)),
        age.decode(read.value(5)),
    )


async def _whole(engine: kv.Engine, asked: kv.Range, first: kv.Page) -> list[kv.Page]:
    """The first page of a range, which was read, and those that follow it."""
    return [first, *[page async for page in paging.RangePages(engine, paging.rest_of(asked, first))]]


async def _first_us(engine: kv.Engine, at: ids.Address, above: int) -> int | None:
    page = (await engine.read(kv.Range(*journal_keys.frames(at, above=above), count_max=1))).page(0)
    entries = journals.decode(at, page.items, above=above)
    return entries[0].time_us if entries else None


async def superseded(
    engine: kv.Engine, policies: Policies, at: ids.Address, taken: StateSnapshot
) -> SupersededSnapshots:
    """What goes with this snapshot. None are named if so many are kept that they would not be read with every snapshot:
    those go when the world is compacted. Of snapshots that are kept for a time there may be any number: they are looked
    through now and then.
    """
    known = policies.recent(at.universe)
    # This is asked with every snapshot, so the cases that need no read come first.
    if known is not None and not 0 < known.kept <= KEPT_MAX:
        return SupersededSnapshots()
    if known is not None and known.kept_us:
        now = age.decode((await engine.read(age.get(at.universe))).value(0))
        if not policies.is_look_due(at, known, now):
            return SupersededSnapshots(age_us=now.age_us)
    found = await survey(engine, at)
    age_us = found.now.age_us
    policy = await policies.of(found.settings)
    taken = msgspec.structs.replace(taken, age_us=age_us)
    after = msgspec.structs.replace(
        # The new snapshot is the baseline, which stays: its stored bytes, unknown yet, are expected by no batch.
        found.known,
        baseline=taken,
        snapshots=[*found.known.snapshots, snapshots.StoredSnapshot(taken, b"")],
    )
    old = retention_rules.droppable(after, retention_rules.aged(policy, after, found.now))
    if policy.kept_us and len(old) <= retention_rules.DROPS_MAX:  # else the next snapshot goes on with the others
        policies.looked(at, found.now)
    return SupersededSnapshots(old[: retention_rules.DROPS_MAX], found.expected.pins_raw, age_us)


class Compactor:
    """One compaction of one world. `compute` calls a function in a thread that is for it; `is_over` is asked between
    pages whether to go on, `is_late` whether to do so without a rest; `ends` are the heads of segments
    that were read before.
    """

    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        blobs: blob_layer.Blobs,
        lease: leases.Lease,
        *,
        policies: Policies,
        compute: Compute,
        is_over: Callable[[], bool] = lambda: False,
        is_late: Callable[[], bool] = lambda: False,
        ends: BoundedMap[bytes, journal.Head] | None = None,
    ) -> None:
        self._engine = engine
        self._env = env
        self._blobs = blobs
        self._lease = lease
        self._at = lease.at
        self._policies = policies
        self._compute = compute
        self._is_over = is_over
        self._is_late = is_late
        self._is_behind = False  # with this world: more segments are due than it may rest for
        self._ends = segment_expiry.Ends(blobs, ends)

    async def run(self, *, now: bool = False) -> CompactionResult:
        """Compact what there is, if it is enough, or if it is wanted `now`; drop what nothing needs in any case.
        `Fenced` if the lease is another's.
        """
        found = await survey(self._engine, self._at)
        policy = await self._policy(found)
        done = await self._compact(found, policy, now=now)
        dropped = retention_rules.DROPS_MAX
        # A full batch may not have been all of them.
        while dropped == retention_rules.DROPS_MAX:
            dropped = await transact.run(self._engine, self._env, self._drop)
            done = msgspec.structs.replace(done, snapshots=done.snapshots + dropped)
        while policy.journal_us and not self._is_over():
            expired = await transact.run(self._engine, self._env, self._expire)
            if not expired:
                break
            done = msgspec.structs.replace(done, expired=done.expired + expired)
        return done

    async def _compact(self, surveyed: Survey, policy: RetentionPolicy, *, now: bool) -> CompactionResult:
        done = CompactionResult(
            surveyed.known.compacted, held_back=retention_rules.is_held_back(surveyed.known, policy)
        )
        target = retention_rules.limit(surveyed.known, policy)
        first_us = None if target is None else await _first_us(self._engine, self._at, surveyed.known.compacted)
        if target is None or first_us is None:
            return done
        if not now and not (
            policy.entries and retention_rules.is_due(surveyed.known, target, policy, first_us=first_us)
        ):
            return done
        return await self._segments(surveyed, policy, target.height, done)

    async def _segments(
        self, surveyed: Survey, policy: RetentionPolicy, up_to: int, done: CompactionResult
    ) -> CompactionResult:
        writer = segment_writer.SegmentWriter(
            self._engine,
            self._env,
            self._blobs,
            surveyed.line,
            self._compute,
            with_changes=policy.changes,
            is_over=self._is_over,
            is_late=lambda: self._is_behind or self._is_late(),
            age_us=surveyed.now.age_us,
        )
        entries_max = policy.entries or SEGMENT_ENTRIES
        head: journal.Head | None = surveyed.forked
        last = surveyed.known.last
        if isinstance(last, journal.DroppedEntries):
            # No entry is left to read it from, so the record of what was dropped has the head.
            head = last.end
        elif head is None or head.height != surveyed.known.compacted:
            head = await self._head_at(surveyed.known.compacted)
        while head is not None and head.height < up_to:
            # A world that is never idle writes quicker than it is compacted between rests: what is left would grow.
            self._is_behind = up_to - head.height > BEHIND_SEGMENTS * entries_max
            written = await writer.write(head, up_to=up_to, entries_max=entries_max)
            if written is None or not await self._publish(written):
                # No frame ends low enough, or a fork needs these entries by now: a later compaction decides again.
                break
            record, head = written.record, written.head
            done = CompactionResult(
                record.last_height,
                done.segments + 1,
                done.entries + record.last_height - record.first_height + 1,
                done.frames + written.frames,
                done.bytes + record.size,
                held_back=done.held_back,
            )
        return done

    async def _head_at(self, height: int) -> journal.Head | None:
        """None if that went with a deleted world: an earlier release has forked this one, and did not note its head."""
        try:
            return await segment_writer.head_at(self._engine, self._blobs, self._at, height)
        except errors.NotRetained:
            probes.hit("compaction.parent-deleted")
            return None

    async def _publish(self, written: segment_writer.WrittenSegment) -> bool:
        """Index a segment in the place of its frames. False if a fork needs these by now."""
        record = written.record
        raw = segment_keys.SEGMENT.pack(record)

        async def attempt() -> transact.NothingToWrite[bool] | transact.Write[bool]:
            # Read again with every attempt, because the batch expects what the decision was made from.
            found = await self._survey()
            if found.last is not None and found.last.raw == raw:
                return transact.NothingToWrite(True)  # an answer was lost
            # Only the holder writes segments, and the lease was checked: another end is damage.
            if found.known.compacted != record.first_height - 1:
                raise errors.DecodeError(
                    f"segments end at height {found.known.compacted}, not {record.first_height - 1}"
                )
            if not retention_rules.allows(found.known, record):
                probes.hit("compaction.held-back")
                return transact.NothingToWrite(False)
            await self._blobs.put(written.body)  # it is there, unless a collection came between
            batch = kv.Batch()
            batches.move(batch, self._lease, found.expected, record, last=found.last)
            return transact.Write(batch, lambda _: True)

        return await transact.run(self._engine, self._env, attempt)

    async def _drop(self) -> transact.NothingToWrite[int] | transact.Write[int]:
        """How many snapshots were dropped."""
        # Read again with every attempt: the rules must see what the batch expects.
        found = await self._survey()
        old = retention_rules.droppable(found.known, await self._policy(found))[: retention_rules.DROPS_MAX]
        if not old:
            return transact.NothingToWrite(0)
        batch = kv.Batch()
        batches.drop(batch, self._lease, found.expected, old)
        return transact.Write(batch, lambda _: len(old))

    async def _expire(self) -> transact.NothingToWrite[int] | transact.Write[int]:
        """How many entries were dropped."""
        found = await self._survey()
        policy = await self._policy(found)
        old = await segment_expiry.oldest(self._engine, self._ends, self._at, found.known, policy, now=found.now)
        if old is None:
            return transact.NothingToWrite(0)
        return segment_expiry.write(self._lease, found.expected, found.known, old)

    async def _policy(self, surveyed: Survey) -> RetentionPolicy:
        return retention_rules.aged(await self._policies.of(surveyed.settings), surveyed.known, surveyed.now)

    async def _survey(self) -> Survey:
        state = await mark_barrier.unmarked(self._engine, self._env, self._at.universe)
        found = await survey(self._engine, self._at, state.generation_raw)
        # Checked before any work; the batch expects the epoch in any case.
        if found.epoch_raw != self._lease.raw_epoch:
            raise errors.Fenced(f"the lease of world {self._at.world.hex()} is another's by now")
        return found
