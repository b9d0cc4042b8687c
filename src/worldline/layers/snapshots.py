"""Snapshots: names for saved states, and the baseline a restore starts from.

A snapshot's blob is put into the CAS first; its record is written only afterwards, by the lease holder, and never
changes. The baseline is one of the snapshots and only ever moves to a later step. Restore reads the baseline's blob,
then the entries *above* its height, so each height comes from exactly one place.

Not here: what a snapshot's blob holds, and dropping old snapshots.
"""

from __future__ import annotations

import msgspec

from worldline.base import errors
from worldline.keys import snapshots as keys
from worldline.model import ids, journal, snapshot
from worldline.store import kv


class Saved(msgspec.Struct, frozen=True):
    """A snapshot's record as it was read, or as this batch writes it."""

    record: snapshot.Snapshot
    raw: bytes


def save(batch: kv.Batch, at: ids.Address, taken: snapshot.Snapshot) -> Saved:
    """Record a snapshot. Guard: none of that step yet. The caller fences, and has put the blob."""
    saved = Saved(taken, keys.SNAPSHOT.pack(taken))
    batch.absent(keys.snapshot_key(at, taken.step))
    batch.put(keys.snapshot_key(at, taken.step), saved.raw)
    return saved


def promote(batch: kv.Batch, at: ids.Address, *, before_raw: bytes, to: Saved) -> None:
    """Make a snapshot the baseline: a recorded one, or the one this batch records. The caller fences.

    Guard: the baseline as it was read. A recorded snapshot is expected to be still there.
    """
    before = keys.BASELINE.unpack(before_raw)
    if to.record.step <= before.step:
        raise errors.BadInput(f"the baseline is at step {before.step} and cannot move back to {to.record.step}")
    batch.expect(keys.baseline_key(at), before_raw)
    batch.put(keys.baseline_key(at), keys.BASELINE.pack(to.record))
    key = keys.snapshot_key(at, to.record.step)
    if key in batch.puts:
        assert batch.puts[key].value == to.raw, "the batch records another snapshot of that step"
    else:
        batch.expect(key, to.raw)


def at_head(head: journal.Head, *, root: bytes, size: int, program_hash: bytes) -> snapshot.Snapshot:
    """The record of a state saved at the end of the head's step."""
    return snapshot.Snapshot(head.step, head.height, head.chain, root, size, program_hash, head.time_us)


def head_of(taken: snapshot.Snapshot, *, state: bytes) -> journal.Head:
    """The head a restored snapshot stands at."""
    return journal.Head(taken.step, taken.height, taken.chain, state, taken.time_us)


def get_baseline(at: ids.Address) -> kv.Get:
    return kv.Get(keys.baseline_key(at))


def decode_baseline(raw: bytes | None) -> snapshot.Snapshot:
    if raw is None:
        raise errors.NotFound("no baseline: the world does not exist")
    return keys.BASELINE.unpack(raw)


def latest_range(at: ids.Address, *, up_to: int, count_max: int = 1) -> kv.Range:
    """The latest snapshots at or below a step, latest first."""
    begin, end = keys.snapshots(at, up_to=up_to)
    return kv.Range(begin, end, count_max=count_max, reverse=True)


def decode(at: ids.Address, page: kv.Page) -> list[Saved]:
    """The records of a page, in its order. One filed under another step is corruption."""
    return [_decode(at, key, raw) for key, raw in page.items]


def _decode(at: ids.Address, key: bytes, raw: bytes) -> Saved:
    record = keys.SNAPSHOT.unpack(raw)
    filed = keys.snapshot_step(at, key)
    if record.step != filed:
        raise errors.DecodeError(f"the snapshot filed under step {filed} is of step {record.step}")
    return Saved(record, raw)
