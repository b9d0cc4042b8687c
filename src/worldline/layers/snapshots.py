"""Snapshots: names for saved states, the baseline a restore starts from, and the pins of forks.

A snapshot's blob is put into the CAS first; its record is written only afterwards, by the lease holder, and never
changes. The baseline is one of the snapshots and only ever moves to a later step. Restore reads the baseline's blob,
then the entries *above* its height, so each height comes from exactly one place.

A fork has no state of its own at first: a restore of it begins at a snapshot of the world that it comes from, and goes
on with the changes above that. A pin keeps them there, in each world that has some, until the fork has saved a state of
its own. Each pin is a key of its own, so forks do not wait for each other, and moves a counter: a caller that drops
something old expects the counter as it was when the pins were read.

Not here: what a snapshot's blob holds, and which old snapshots are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from worldline.base import errors
from worldline.keys import lineage as lineage_keys
from worldline.keys import snapshots as keys
from worldline.model import ids, journal, snapshots, world_records
from worldline.store import kv


class StoredSnapshot(msgspec.Struct, frozen=True):
    """A snapshot's record as it was read, or as this batch writes it."""

    record: snapshots.StateSnapshot
    raw: bytes


def save(batch: kv.Batch, at: ids.Address, taken: snapshots.StateSnapshot) -> StoredSnapshot:
    """Record a snapshot. Guard: none of that step yet. The caller fences, and has put the blob."""
    saved = StoredSnapshot(taken, keys.SNAPSHOT.pack(taken))
    batch.absent(keys.snapshot_key(at, taken.step))
    batch.put(keys.snapshot_key(at, taken.step), saved.raw)
    return saved


def promote(batch: kv.Batch, at: ids.Address, *, before_raw: bytes, to: StoredSnapshot) -> None:
    """Make a snapshot the baseline: a recorded one, or the one this batch records. The caller fences.

    Guard: the baseline as it was read. A recorded snapshot is expected to be still there.
    """
    before = keys.BASELINE.unpack(before_raw)
    if to.record.step <= before.step:
        raise errors.BadInput(f"the baseline is at step {before.step} and cannot move back to {to.record.step}")
    batch.expect(keys.baseline_key(at), before_raw)
    batch.put(keys.baseline_key(at), keys.BASELINE.pack(to.record))
    key = keys.snapshot_key(at, to.record.step)
    # The batch itself records the snapshot, and then nothing can be expected of its key but absence.
    if key in batch.puts:
        assert batch.puts[key].value == to.raw, "the batch records another snapshot of that step"
    else:
        batch.expect(key, to.raw)


def drop(batch: kv.Batch, at: ids.Address, old: Sequence[StoredSnapshot]) -> None:
    """Delete the records of snapshots. Guard: they are there; none is ever made again. The caller fences, and expects
    the count of pins as it was when these were chosen (`expect_pins`).
    """
    for each in old:
        key = keys.snapshot_key(at, each.record.step)
        batch.expect(key, each.raw)
        batch.delete(key)


def pin(
    batch: kv.Batch,
    owner: ids.Address,
    saved: StoredSnapshot,
    lineage: world_records.Lineage,
    fork: ids.WorldId,
    *,
    frames: Sequence[tuple[bytes, bytes]] = (),
) -> None:
    """Keep for a new fork the snapshot that a restore of it begins at, which is `owner`'s, and the changes above it.

    The snapshot is expected to be still there, and so are `frames`, the first that have some of these changes. The
    batch that makes the fork has guards of its own.
    """
    batch.expect(keys.snapshot_key(owner, saved.record.step), saved.raw)
    for key, raw in frames:
        batch.expect(key, raw)
    for at in leaned_on(owner.universe, lineage, saved.record.height):
        batch.put(
            lineage_keys.pin_key(at, fork), lineage_keys.PIN.pack(world_records.Pin(saved.record.step, lineage.height))
        )
        # Pins that come and pins that go both add: a count that is the same means that neither happened.
        batch.add(lineage_keys.pin_count_key(at), 1)


def leaned_on(universe: ids.UniverseId, lineage: world_records.Lineage, height: int) -> list[ids.Address]:
    """The worlds of which a fork needs something as long as a restore of it begins at a snapshot of this height. None
    if that is the fork's own.
    """
    needed = {ids.WorldId(each.world): None for each in lineage.sections if each.height >= height}
    return [ids.Address(universe, each) for each in needed]


def unpin(batch: kv.Batch, fork: ids.Address, lineage: world_records.Lineage, *, height: int) -> None:
    """A fork needs nothing of the worlds any more that it comes from. `height`: of the snapshot that a restore of it
    begins at. The caller fences: these pins are there. Worlds without a pin of it may be deleted, and are left alone.
    """
    for at in leaned_on(fork.universe, lineage, height):
        batch.delete(lineage_keys.pin_key(at, fork.world))
        batch.add(lineage_keys.pin_count_key(at), 1)


def get_pin_count(at: ids.Address) -> kv.Get:
    return kv.Get(lineage_keys.pin_count_key(at))


def expect_pins(batch: kv.Batch, at: ids.Address, raw: bytes | None) -> None:
    """No pin has come or gone since the count of them was read."""
    key = lineage_keys.pin_count_key(at)
    if raw is None:  # there never was one; from now on there is a counter
        batch.absent(key)
        batch.put(key, kv.counter_add(None, 0))
    else:
        batch.expect(key, raw)


def get_pin(at: ids.Address, fork: ids.WorldId) -> kv.Get:
    return kv.Get(lineage_keys.pin_key(at, fork))


def pins_range(at: ids.Address, *, count_max: int) -> kv.Range:
    begin, end = lineage_keys.pins(at)
    return kv.Range(begin, end, count_max=count_max)


def decode_pins(at: ids.Address, page: kv.Page) -> list[tuple[ids.WorldId, world_records.Pin]]:
    return [(lineage_keys.pin_fork(at, key), lineage_keys.PIN.unpack(raw)) for key, raw in page.items]


def at_head(head: journal.Head, *, root: bytes, size: int, program_hash: bytes) -> snapshots.StateSnapshot:
    """The record of a state saved at the end of the head's step."""
    return snapshots.StateSnapshot(head.step, head.height, head.chain, root, size, program_hash, head.time_us)


def head_of(taken: snapshots.StateSnapshot, *, state: bytes) -> journal.Head:
    """The head a restored snapshot stands at."""
    return journal.Head(taken.step, taken.height, taken.chain, state, taken.time_us)


def get_baseline(at: ids.Address) -> kv.Get:
    return kv.Get(keys.baseline_key(at))


def decode_baseline(raw: bytes | None) -> snapshots.StateSnapshot:
    if raw is None:
        raise errors.NotFound("no baseline: the world does not exist, or is deleted")
    return keys.BASELINE.unpack(raw)


def latest_range(at: ids.Address, *, up_to: int, count_max: int = 1) -> kv.Range:
    """The latest snapshots at or below a step, latest first."""
    begin, end = keys.snapshots(at, up_to=up_to)
    return kv.Range(begin, end, count_max=count_max, reverse=True)


def decode(at: ids.Address, page: kv.Page) -> list[StoredSnapshot]:
    """The records of a page, in its order. One filed under another step is corruption."""
    return [_decode(at, key, raw) for key, raw in page.items]


def _decode(at: ids.Address, key: bytes, raw: bytes) -> StoredSnapshot:
    record = keys.SNAPSHOT.unpack(raw)
    # Compared, because ranges are read by the key, and a restore goes by the record.
    filed = keys.snapshot_step(at, key)
    if record.step != filed:
        raise errors.DecodeError(f"the snapshot filed under step {filed} is of step {record.step}")
    return StoredSnapshot(record, raw)
