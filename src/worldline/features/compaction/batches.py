"""Moving frames into a segment, as a batch, and dropping old snapshots and old segments.

All of these expect the epoch, the baseline and the count of pins as they were read: a fork that was made since needs
what would be deleted. They expect, too, that no garbage collection marks: it must find what is moved or dropped while
it does. The body of a segment is in the CAS before its record is written, read back and checked. The record and the
deletes of its frames are one batch: each height is in exactly one place, whatever is cut off and whenever. So is what
drops segments: a height is in one place, or is gone, and the index says so.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from worldline.keys import journal as journal_keys
from worldline.keys import segments as keys
from worldline.keys import snapshots as snapshot_keys
from worldline.layers import leases, universes
from worldline.layers import snapshots as snapshot_layer
from worldline.layers.history import segment_index
from worldline.layers.snapshots import StoredSnapshot
from worldline.model import journal
from worldline.store import kv


class Expected(msgspec.Struct, frozen=True):
    """What must not have changed: the baseline, how often pins came or went, and that no mark is under way."""

    baseline_raw: bytes
    pins_raw: bytes | None
    unmarked: universes.GenerationRecord


def move(
    batch: kv.Batch,
    lease: leases.Lease,
    expected: Expected,
    record: journal.Segment,
    *,
    last: segment_index.Indexed | None,
) -> None:
    """Index a segment that follows the last one, and delete its frames. Guard: there is none up to its height yet."""
    at = lease.at
    assert last is None or last.record.last_height == record.first_height - 1, "segments follow each other"
    _expect(batch, lease, expected)
    if last is not None:
        # Segments have no gap: the one that this follows must still be the last.
        batch.expect(keys.segment_key(at, last.record.last_height), last.raw)
    batch.absent(keys.segment_key(at, record.last_height))
    batch.put(keys.segment_key(at, record.last_height), keys.SEGMENT.pack(record))
    begin, _ = journal_keys.frames(at, above=record.first_height - 1)
    end, _ = journal_keys.frames(at, above=record.last_height)
    batch.delete_range(begin, end)


def drop(batch: kv.Batch, lease: leases.Lease, expected: Expected, snapshots: Sequence[StoredSnapshot]) -> None:
    """Delete the records of snapshots, at least one. Guard: they are there; none is ever made again."""
    assert snapshots
    _expect(batch, lease, expected)
    snapshot_layer.drop(batch, lease.at, snapshots)


def expire(
    batch: kv.Batch,
    lease: leases.Lease,
    expected: Expected,
    oldest: Sequence[segment_index.Indexed],
    end: journal.Head,
    *,
    snapshots: Sequence[StoredSnapshot],
) -> None:
    """Delete the oldest records of the index, and these snapshots: their entries are not kept any more. What stands in
    their place has the head that they end with. Guard: they are there; none is ever made again.
    """
    at, last = lease.at, oldest[-1].record
    assert isinstance(last, journal.Segment), "something is dropped"
    assert last.last_height == end.height, "the head is that of the last"
    assert all(each.record.height < end.height for each in snapshots), "states above stay"
    _expect(batch, lease, expected)
    for each in oldest:
        key = keys.segment_key(at, each.record.last_height)
        batch.expect(key, each.raw)
        # The key of the last one is written below, with what stands for all of them.
        if each.record is not last:
            batch.delete(key)
    batch.put(
        keys.segment_key(at, end.height), keys.DROPPED.pack(journal.DroppedEntries(oldest[0].record.first_height, end))
    )
    snapshot_layer.drop(batch, at, snapshots)


def _expect(batch: kv.Batch, lease: leases.Lease, expected: Expected) -> None:
    leases.fence(batch, lease)
    # A mark that has begun must find what would be moved or dropped here.
    expected.unmarked.expect(batch)
    batch.expect(snapshot_keys.baseline_key(lease.at), expected.baseline_raw)
    snapshot_layer.expect_pins(batch, lease.at, expected.pins_raw)
