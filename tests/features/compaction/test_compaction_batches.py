"""The batches of a compaction: what they expect, write and delete."""

from __future__ import annotations

import pytest

from tests.layers import scenario
from tests.layers.histories import AT
from worldline.features.compaction import batches as compaction_batches
from worldline.keys import journal as journal_keys
from worldline.keys import leases as lease_keys
from worldline.keys import lineage as lineage_keys
from worldline.keys import segments as keys
from worldline.keys import snapshots as snapshot_keys
from worldline.keys import universes as universe_keys
from worldline.layers import leases, universes
from worldline.layers.history import segment_index
from worldline.layers.snapshots import StoredSnapshot
from worldline.model import blobs
from worldline.model.journal import DroppedEntries, Head, Segment
from worldline.model.snapshots import StateSnapshot
from worldline.store import kv

LEASE = leases.Lease(AT, scenario.worker_id(1), 5, b"epoch", b"holder")
FIRST = Segment(1, 7, 1, 3, bytes(32), 100, False)
SECOND = Segment(8, 9, 4, 5, bytes(32), 100, False)
GENERATION = universe_keys.GENERATION.pack(blobs.Generation(4))
UNMARKED = universes.GenerationRecord(AT.universe, GENERATION)
LAST = segment_index.Indexed(FIRST, keys.SEGMENT.pack(FIRST))


@pytest.mark.parametrize("pins", [None, kv.counter_add(None, 3)])
def test_a_segment_in_the_place_of_its_frames(pins: bytes | None) -> None:
    batch = kv.Batch()
    compaction_batches.move(batch, LEASE, compaction_batches.Expected(b"baseline", pins, UNMARKED), SECOND, last=LAST)
    kv.check(batch)
    assert batch.expects == {
        lease_keys.epoch_key(AT): b"epoch",
        snapshot_keys.baseline_key(AT): b"baseline",
        universe_keys.generation_key(AT.universe): GENERATION,
        lineage_keys.pin_count_key(AT): pins,
        keys.segment_key(AT, 7): LAST.raw,
        keys.segment_key(AT, 9): None,
    }
    assert {key: put.value for key, put in batch.puts.items()} == {
        keys.segment_key(AT, 9): keys.SEGMENT.pack(SECOND)
    } | ({lineage_keys.pin_count_key(AT): bytes(8)} if pins is None else {})
    [(begin, end)] = batch.ranges
    deleted = [journal_keys.frame_key(AT, 8), journal_keys.frame_key(AT, 9), journal_keys.part_key(AT, 9, 255)]
    kept = [journal_keys.part_key(AT, 7, 255), journal_keys.frame_key(AT, 10), journal_keys.frame_key(AT, 300)]
    assert all(begin <= key < end for key in deleted)
    assert not any(begin <= key < end for key in kept)
    assert not batch.deletes


def test_segments_follow_each_other() -> None:
    expected = compaction_batches.Expected(b"", b"", UNMARKED)
    with pytest.raises(AssertionError, match="segments follow each other"):
        compaction_batches.move(kv.Batch(), LEASE, expected, Segment(9, 9, 5, 5, bytes(32), 1, False), last=LAST)


def test_snapshots_are_dropped_as_they_were_read() -> None:
    saved = [
        StoredSnapshot(StateSnapshot(step, step, bytes(32), bytes(32), 1, b"", 0), b"raw %d" % step) for step in (3, 5)
    ]
    batch = kv.Batch()
    compaction_batches.drop(
        batch, LEASE, compaction_batches.Expected(b"baseline", kv.counter_add(None, 1), UNMARKED), saved
    )
    kv.check(batch)
    assert batch.expects == {
        lease_keys.epoch_key(AT): b"epoch",
        snapshot_keys.baseline_key(AT): b"baseline",
        universe_keys.generation_key(AT.universe): GENERATION,
        lineage_keys.pin_count_key(AT): kv.counter_add(None, 1),
        snapshot_keys.snapshot_key(AT, 3): b"raw 3",
        snapshot_keys.snapshot_key(AT, 5): b"raw 5",
    }
    assert list(batch.deletes) == [snapshot_keys.snapshot_key(AT, 3), snapshot_keys.snapshot_key(AT, 5)]
    assert not batch.puts


def test_the_oldest_segments_are_dropped() -> None:
    """One record stands for them, with the head that the chain goes on from. Snapshots below go with them."""
    before = segment_index.Indexed(
        gone := DroppedEntries(1, Head(1, 3, bytes(32), bytes(32), 5)), keys.DROPPED.pack(gone)
    )
    first = segment_index.Indexed(record := Segment(4, 7, 2, 3, bytes(32), 100, False), keys.SEGMENT.pack(record))
    second = segment_index.Indexed(SECOND, keys.SEGMENT.pack(SECOND))
    end = Head(5, 9, b"c" * 32, b"s" * 32, 77)
    saved = StoredSnapshot(StateSnapshot(3, 7, bytes(32), bytes(32), 1, b"", 0), b"raw")
    batch = kv.Batch()
    expected = compaction_batches.Expected(b"baseline", kv.counter_add(None, 1), UNMARKED)
    compaction_batches.expire(batch, LEASE, expected, [before, first, second], end, snapshots=[saved])
    kv.check(batch)
    assert batch.expects == {
        lease_keys.epoch_key(AT): b"epoch",
        snapshot_keys.baseline_key(AT): b"baseline",
        lineage_keys.pin_count_key(AT): kv.counter_add(None, 1),
        universe_keys.generation_key(AT.universe): GENERATION,
        keys.segment_key(AT, 3): before.raw,
        keys.segment_key(AT, 7): first.raw,
        keys.segment_key(AT, 9): second.raw,
        snapshot_keys.snapshot_key(AT, 3): b"raw",
    }
    assert [*batch.deletes] == [keys.segment_key(AT, 3), keys.segment_key(AT, 7), snapshot_keys.snapshot_key(AT, 3)]
    assert {key: put.value for key, put in batch.puts.items()} == {
        keys.segment_key(AT, 9): keys.DROPPED.pack(DroppedEntries(1, end))
    }
    for wrong in ([before], [before, first]):
        with pytest.raises(AssertionError):
            compaction_batches.expire(kv.Batch(), LEASE, expected, wrong, end, snapshots=[])
    at_end = StoredSnapshot(StateSnapshot(5, 9, bytes(32), bytes(32), 1, b"", 0), b"raw")
    with pytest.raises(AssertionError, match="states above stay"):
        compaction_batches.expire(kv.Batch(), LEASE, expected, [second], end, snapshots=[at_end])
