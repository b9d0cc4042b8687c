"""Deleting a world: first it is gone, then it is removed.

::

    ACTIVE, PAUSED, ARCHIVED --begin--> DELETED, queued --remove, again and again--> DELETED, empty --finish--> DELETED

`begin` is the one batch that decides. It expects meta, epoch and the count of pins as they were read, and changes meta
and epoch. Each writer of a world expects one of these two: producers, timer workers and effect workers the meta, the
holder the epoch. So what was written before is there to be removed, and nothing is written afterwards. Open work is
changed by effect workers that expect its record alone: it is removed by expecting it, too.

Everything else is done in batches of bounded size, by any process and any number of them: each expects the record of
the deletion and changes it. A batch that is cut off or repeated changes nothing twice. What stays is the tombstone (the
meta, without name, program and labels) and the epoch, which is never deleted.

A collection that marks what is needed must not find a part of a world: nothing is removed meanwhile
(`features/collection/batches.py`).

Not here: blobs. What nothing refers to any more is garbage, and is collected.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from worldline.base import errors, limits
from worldline.codec import tuples
from worldline.features.collection import batches as collection_batches
from worldline.features.deletion import keyspace as keys
from worldline.features.encryption import batches as encryption_batches
from worldline.features.encryption import keyspace as data_key_records
from worldline.features.erasure import batches as erasure_batches
from worldline.features.erasure.records import ErasedKind
from worldline.keys import keyspace_table, space
from worldline.keys import ready as hint_keys
from worldline.keys import work as work_keys
from worldline.keys import worlds as world_keys
from worldline.keys.keyspace_table import OnDelete
from worldline.layers import leases, snapshots, worlds
from worldline.model import ids
from worldline.model import snapshots as snapshot
from worldline.model import world_records as model
from worldline.store import kv


class DoomedWorld(msgspec.Struct, frozen=True):
    """A deletion that is not finished, as it was read."""

    at: ids.Address
    record: keys.DeletionRecord
    raw: bytes


def begin(
    batch: kv.Batch,
    world: worlds.WorldRecord,
    lease: leases.LeaseState,
    *,
    pins_raw: bytes | None,
    token: bytes,
    time_us: int,
    names: Sequence[tuple[str, bytes]] = (),
    leans: tuple[model.Lineage, snapshot.StateSnapshot] | None = None,
    data_key_raw: bytes | None = None,
) -> DoomedWorld:
    """The world is gone. Guards: its meta, its epoch, and that no deletion of it was begun.

    `pins_raw`: the count of pins, read before it was found that there are none. `names`: those that are known to point
    to it, with their records. `leans`: of a fork, its lineage and its baseline; its pins in other worlds go.
    `data_key_raw`: in an encrypted store, the key of the world, which is destroyed.
    """
    at = world.at
    worlds.bury(batch, world)
    # Batches of the holder expect the epoch, so they conflict from this commit on.
    fence(batch, lease, token=token)
    # A fork that was made since has changed the count of pins: it needs this world's history.
    snapshots.expect_pins(batch, at, pins_raw)
    if leans is not None:
        lineage, baseline = leans
        snapshots.unpin(batch, at, lineage, height=baseline.height)
    batch.delete_range(*work_keys.open_work(at))  # from now on no effect worker takes any of it
    for name, raw in names:
        worlds.free_name(batch, at.universe, name, raw=raw)
    # In this batch, so that what is left until it is removed can be read by no process.
    if data_key_raw is not None:
        encryption_batches.destroy(batch, data_key_records.world_key(at), data_key_raw, time_us=time_us)
    # In the batch that erases: the ledger has every erasure, and no other.
    erasure_batches.note(batch, ErasedKind.WORLD, at, time_us=time_us)
    doomed = _doomed(at, keys.DeletionRecord(time_us))
    # A world is deleted once, so there is one record for its deletion.
    batch.absent(keys.deletion_key(at))
    batch.put(keys.deletion_key(at), doomed.raw)
    return doomed


def fence(batch: kv.Batch, lease: leases.LeaseState, *, token: bytes) -> None:
    """Its holder writes nothing any more, nor does a worker that is taking the lease now."""
    leases.revoke(batch, lease, token=token)


def queue(batch: kv.Batch, at: ids.Address, *, meta_raw: bytes, time_us: int) -> None:
    """Have removed what is left of a world that an earlier release has deleted: it did not. Guard: no deletion of it is
    queued.
    """
    assert worlds.is_deleted(meta_raw)
    batch.expect(world_keys.meta_key(at), meta_raw)
    batch.absent(keys.deletion_key(at))
    batch.put(keys.deletion_key(at), keys.DELETION.pack(keys.DeletionRecord(time_us)))


def next_world(universe: ids.UniverseId, *, after: ids.WorldId | None) -> kv.Range:
    """The first key of the next world behind this one, deleted or not. What it has is not walked."""
    begin, end = tuples.prefix_range(space.universe(universe) + space.part(space.InUniverse.WORLD))
    if after is not None:
        # Behind the prefix of this world: its own keys may be many, and none of them is read.
        begin = tuples.prefix_range(space.world(ids.Address(universe, after)))[1]
    return kv.Range(begin, end, count_max=1)


def decode_next(universe: ids.UniverseId, page: kv.Page) -> ids.Address | None:
    """The world of such a page; None if there is no other."""
    prefix = space.universe(universe) + space.part(space.InUniverse.WORLD)
    for key, _ in page.items:
        world, *_ = space.inside(prefix, key, "a key of a world of this universe")
        if not isinstance(world, tuples.Uuid):
            raise errors.DecodeError("not a key of a world")
        return ids.Address(universe, ids.WorldId(world.raw))
    return None


def get(at: ids.Address) -> kv.Get:
    return kv.Get(keys.deletion_key(at))


def decode(at: ids.Address, raw: bytes | None) -> DoomedWorld | None:
    """A record that is damaged is as good as another: its key says what is to be removed."""
    if raw is None:
        return None
    try:
        return DoomedWorld(at, keys.DELETION.unpack(raw), raw)
    except errors.Corrupt:
        return DoomedWorld(at, keys.DeletionRecord(0), raw)


def prefix(universe: ids.UniverseId) -> bytes:
    """What the keys of deletions begin with, to wait for new ones."""
    return keys.deletions(universe)[0]


def unfinished(universe: ids.UniverseId, *, after: ids.WorldId | None = None, count_max: int) -> kv.Range:
    begin, end = keys.deletions(universe)
    if after is not None:
        begin = tuples.successor(keys.deletion_key(ids.Address(universe, after)))
    return kv.Range(begin, end, count_max=count_max)


def decode_unfinished(universe: ids.UniverseId, page: kv.Page) -> list[DoomedWorld]:
    addresses = [ids.Address(universe, keys.deletion_world(universe, key)) for key, _ in page.items]
    found = [decode(at, raw) for at, (_, raw) in zip(addresses, page.items, strict=True)]
    return [each for each in found if each is not None]


# --- What is its own --------------------------------------------------------------------------------------------------


def reads(at: ids.Address) -> tuple[kv.Range, kv.Range]:
    """What is to be removed next: of its open work, and of its own keys. `remove` takes both pages."""
    begin, end = work_keys.open_work(at)
    first = space.world(at) + space.part(_FIRST)
    return (
        kv.Range(begin, end, count_max=limits.DELETE_KEYS_MAX, bytes_max=limits.DELETE_BYTES_MAX),
        kv.Range(
            first,
            tuples.prefix_range(space.world(at))[1],
            count_max=limits.DELETE_KEYS_MAX,
            bytes_max=limits.DELETE_BYTES_MAX,
        ),
    )


# What stays of a world comes before all that goes, so one range has what goes.
_FIRST = min(keyspace_table.in_world(lambda each: each.deletion is OnDelete.GOES))
assert max(keyspace_table.in_world(lambda each: each.deletion is OnDelete.STAYS)) < _FIRST


def remove(
    batch: kv.Batch, doomed: DoomedWorld, work: kv.Page, own: kv.Page, *, marks: collection_batches.CollectionState
) -> DoomedWorld | None:
    """Remove what was read. Returns the deletion as it is then; None if there was nothing. Guard: the deletion as it
    was read. `marks`: no mark is under way.
    """
    if not work.items and not own.items:
        return None
    # A mark must not find one part of a world and miss the other, which is removed before it gets there.
    collection_batches.expect_no_mark(batch, marks)
    for key, raw in work.items:
        # Effect workers change open work by expecting its record alone, so it is removed as it was read, or not at all.
        batch.expect(key, raw)
        batch.delete(key)
        pointer = _pointer(doomed.at, key, raw)
        if pointer is not None:
            batch.delete(pointer)
    for key, _ in own.items:
        batch.delete(key)  # not expected: a deleted world has no writers
    removed = len(work.items) + len(own.items)
    after = _doomed(doomed.at, msgspec.structs.replace(doomed.record, removed=doomed.record.removed + removed))
    # Each batch changes the record: of two processes that have read the same page, one conflicts and counts nothing.
    batch.expect(keys.deletion_key(doomed.at), doomed.raw)
    batch.put(keys.deletion_key(doomed.at), after.raw)
    return after


def finish(batch: kv.Batch, doomed: DoomedWorld) -> None:
    """Nothing is left of it. Guard: the deletion as it was read; a world is deleted once."""
    batch.expect(keys.deletion_key(doomed.at), doomed.raw)
    batch.delete(keys.deletion_key(doomed.at))
    # The scrub that `begin` owed may be over, and most keys have gone since.
    erasure_batches.owe_scrub(batch)


# --- What the universe says of it -------------------------------------------------------------------------------------

Places = tuple[kv.Range, ...]


def mentions(universe: ids.UniverseId) -> Places:
    """Where deleted worlds may be mentioned: names, hints, and pointers to work. Each is read once, for any number of
    them.
    """
    return tuple(kv.Range(*each(universe), count_max=limits.DELETE_KEYS_MAX) for each in _MENTIONS.values())


# `_mentioned` reads the world out of each of them.
_MENTIONS = {
    space.InUniverse.NAME: world_keys.names,
    space.InUniverse.HINT: hint_keys.every_hint,
    space.InUniverse.DUE: work_keys.due_all,
}
assert sorted(_MENTIONS) == sorted(keyspace_table.in_universe(lambda each: each.deletion is OnDelete.MENTIONS))


def forget(batch: kv.Batch, universe: ids.UniverseId, page: kv.Page, gone: dict[ids.WorldId, None]) -> int:
    """Remove what mentions these worlds, and return how many keys that is. Guard: they are as they were read."""
    count = 0
    for key, raw in page.items:
        if _mentioned(universe, key, raw) in gone:
            batch.expect(key, raw)
            batch.delete(key)
            count += 1
    return count


def _mentioned(universe: ids.UniverseId, key: bytes, raw: bytes) -> ids.WorldId | None:
    """The world that a name, a hint or a pointer leads to; None if it cannot be read, which `doctor` reports."""
    try:
        row = keyspace_table.of(key)
        match None if row is None else row.place:
            case space.InUniverse.NAME:
                at = worlds.named(universe, raw)
                return None if at is None else at.world
            case space.InUniverse.DUE:
                return work_keys.pointer(universe, key).at.world
            case _:
                return hint_keys.hint_world(raw)
    except errors.Corrupt:
        return None


def _pointer(at: ids.Address, key: bytes, raw: bytes) -> bytes | None:
    """Where open work stands in its queue. None if it cannot be read: its pointer is found with the others."""
    try:
        found = work_keys.WORK.unpack(raw)
        return work_keys.due_key(at, work_keys.open_intent(at, key), queue=found.queue, due_us=found.due_us)
    except errors.Error:
        return None


def _doomed(at: ids.Address, record: keys.DeletionRecord) -> DoomedWorld:
    return DoomedWorld(at, record, keys.DELETION.pack(record))
