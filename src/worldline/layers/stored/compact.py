"""Moving frames into a segment, as a batch, and dropping old snapshots.

Both expect the epoch, the baseline and the count of pins as they were read: a fork that was made since needs what would
be deleted. The body of a segment is in the CAS before its record is written, read back and checked. The record and the
deletes of its frames are one batch: each height is in exactly one place, whatever is cut off and whenever.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from worldline.base import errors
from worldline.keys import journal as journal_keys
from worldline.keys import segments as keys
from worldline.keys import snapshots as snapshot_keys
from worldline.layers import leases, snapshots
from worldline.layers.snapshots import Saved
from worldline.model import ids, journal
from worldline.store import kv


class Expected(msgspec.Struct, frozen=True):
    """What must not have changed: the baseline, and how often pins came or went."""

    baseline_raw: bytes
    pins_raw: bytes | None


class Last(msgspec.Struct, frozen=True):
    """The last segment of a world, as it was read."""

    record: journal.Segment
    raw: bytes


def last_range(at: ids.Address) -> kv.Range:
    begin, end = keys.segments(at)
    return kv.Range(begin, end, count_max=1, reverse=True)


def decode_last(at: ids.Address, page: kv.Page) -> Last | None:
    for key, raw in page.items:
        record = keys.SEGMENT.unpack(raw)
        if keys.segment_height(at, key) != record.last_height:
            raise errors.DecodeError(f"the segment up to height {record.last_height} is filed elsewhere")
        return Last(record, raw)
    return None


def move(
    batch: kv.Batch, lease: leases.Lease, expected: Expected, record: journal.Segment, *, last: Last | None
) -> None:
    """Index a segment that follows the last one, and delete its frames. Guard: there is none up to its height yet."""
    at = lease.at
    assert last is None or last.record.last_height == record.first_height - 1, "segments follow each other"
    _expect(batch, lease, expected)
    if last is not None:
        batch.expect(keys.segment_key(at, last.record.last_height), last.raw)
    batch.absent(keys.segment_key(at, record.last_height))
    batch.put(keys.segment_key(at, record.last_height), keys.SEGMENT.pack(record))
    begin, _ = journal_keys.frames(at, above=record.first_height - 1)
    end, _ = journal_keys.frames(at, above=record.last_height)
    batch.delete_range(begin, end)


def drop(batch: kv.Batch, lease: leases.Lease, expected: Expected, dropped: Sequence[Saved]) -> None:
    """Delete the records of snapshots, at least one. Guard: they are there; none is ever made again."""
    assert dropped
    _expect(batch, lease, expected)
    for each in dropped:
        key = snapshot_keys.snapshot_key(lease.at, each.record.step)
        batch.expect(key, each.raw)
        batch.delete(key)


def _expect(batch: kv.Batch, lease: leases.Lease, expected: Expected) -> None:
    leases.fence(batch, lease)
    batch.expect(snapshot_keys.baseline_key(lease.at), expected.baseline_raw)
    snapshots.expect_pins(batch, lease.at, expected.pins_raw)
