"""Deleting a universe: first it is closed, then gone, then removed.

::

    open --close--> closed, queued --decide--> gone --remove, again and again--> empty --finish--> nothing
                        |
                        +--reopen--> open        it turned out not to be empty, and its worlds were not to go with it

Making a world expects the universe's record, which `close` changes: from then on no world is made, and whether it is
empty can be found out with certainty. Its name is free again with `close`. The queue is outside of the universe, so
that the last key of it can go. Each batch expects the record of the deletion and changes it, so any number of processes
may do this at once, and resume where another was cut off.

Worlds of a universe that goes with them are deleted one by one (`batches.py`), which fences their writers. Then every
key under the universe's prefix goes, tombstones and epochs included: a writer that is late expects one of them, and
conflicts with its absence as well.
"""

from __future__ import annotations

import msgspec

from worldline.base import errors, limits
from worldline.codec import tuples
from worldline.features.deletion import universe_keyspace as keys
from worldline.features.erasure import batches as erasure_batches
from worldline.features.erasure.records import ErasedKind
from worldline.keys import space
from worldline.keys import universes as universe_keys
from worldline.model import ids
from worldline.model import world_records as model
from worldline.store import kv


class DoomedUniverse(msgspec.Struct, frozen=True):
    """A deletion that is not finished, as it was read."""

    universe: ids.UniverseId
    record: keys.UniverseDeletion
    raw: bytes


def close(
    batch: kv.Batch, universe: ids.UniverseId, *, name_raw: bytes, meta_raw: bytes, with_worlds: bool, time_us: int
) -> DoomedUniverse:
    """No world is made in it any more, and its name is free. Guards: its name and its record as they were read."""
    meta: model.UniverseMeta = universe_keys.META.unpack(meta_raw)
    # Another universe may take the name at once: what is left of this one is found by its id.
    batch.expect(universe_keys.name_key(meta.name), name_raw)
    batch.delete(universe_keys.name_key(meta.name))
    batch.expect(universe_keys.meta_key(universe), meta_raw)
    closed = msgspec.structs.replace(meta, closed=True)
    batch.put(universe_keys.meta_key(universe), universe_keys.META.pack(closed))
    doomed = _doomed(universe, keys.UniverseDeletion(time_us, meta.name, with_worlds))
    batch.absent(keys.deletion_key(universe))
    batch.put(keys.deletion_key(universe), doomed.raw)
    return doomed


def decide(batch: kv.Batch, doomed: DoomedUniverse) -> DoomedUniverse:
    """It goes. Guard: the deletion as it was read."""
    assert not doomed.record.decided
    # Noted now, and not with `close`: a universe that is opened again has erased nothing.
    erasure_batches.note(batch, ErasedKind.UNIVERSE, doomed.universe, time_us=doomed.record.since_us)
    return _change(batch, doomed, msgspec.structs.replace(doomed.record, decided=True))


def reopen(batch: kv.Batch, doomed: DoomedUniverse, *, meta_raw: bytes) -> None:
    """It stays: it has worlds. Guards: the deletion as it was read, and that its name is free still."""
    assert not doomed.record.decided
    name = doomed.record.name
    batch.expect(keys.deletion_key(doomed.universe), doomed.raw)
    batch.delete(keys.deletion_key(doomed.universe))
    # If another universe has the name by now, this conflicts, and the next look decides that this one goes.
    batch.absent(universe_keys.name_key(name))
    batch.put(universe_keys.name_key(name), universe_keys.NAME.pack(universe_keys.UniverseName(doomed.universe)))
    meta: model.UniverseMeta = universe_keys.META.unpack(meta_raw)
    batch.expect(universe_keys.meta_key(doomed.universe), meta_raw)
    batch.put(
        universe_keys.meta_key(doomed.universe), universe_keys.META.pack(msgspec.structs.replace(meta, closed=False))
    )


def read_range(universe: ids.UniverseId) -> kv.Range:
    """What is to be removed next."""
    return kv.Range(
        *tuples.prefix_range(space.universe(universe)),
        count_max=limits.DELETE_KEYS_MAX,
        bytes_max=limits.DELETE_BYTES_MAX,
    )


def remove(batch: kv.Batch, doomed: DoomedUniverse, page: kv.Page, *, objects: int = 0) -> DoomedUniverse:
    """Remove what was read, and say how many objects were. Guard: the deletion as it was read."""
    assert doomed.record.decided
    for key, _ in page.items:
        batch.delete(key)  # not expected: no writer is left that could change it
    record = doomed.record
    return _change(
        batch,
        doomed,
        msgspec.structs.replace(record, removed=record.removed + len(page.items), objects=record.objects + objects),
    )


def finish(batch: kv.Batch, doomed: DoomedUniverse) -> None:
    """Nothing is left of it. Guard: the deletion as it was read; the id is never used again."""
    batch.expect(keys.deletion_key(doomed.universe), doomed.raw)
    batch.delete(keys.deletion_key(doomed.universe))
    erasure_batches.owe_scrub(batch)


def get(universe: ids.UniverseId) -> kv.Get:
    return kv.Get(keys.deletion_key(universe))


def decode(universe: ids.UniverseId, raw: bytes | None) -> DoomedUniverse | None:
    return None if raw is None else DoomedUniverse(universe, keys.DELETION.unpack(raw), raw)


def prefix() -> bytes:
    """What the keys of deletions begin with, to wait for new ones."""
    return keys.deletions()[0]


def unfinished(*, count_max: int) -> kv.Range:
    return kv.Range(*keys.deletions(), count_max=count_max)


def decode_unfinished(page: kv.Page) -> list[DoomedUniverse]:
    """Those that can be read; another is reported by `doctor`."""
    found: list[DoomedUniverse] = []
    for key, raw in page.items:
        try:
            found.append(DoomedUniverse(keys.deletion_universe(key), keys.DELETION.unpack(raw), raw))
        except errors.Corrupt:
            continue  # it must not keep the others from being removed
    return found


def _change(batch: kv.Batch, doomed: DoomedUniverse, record: keys.UniverseDeletion) -> DoomedUniverse:
    after = _doomed(doomed.universe, record)
    batch.expect(keys.deletion_key(doomed.universe), doomed.raw)
    batch.put(keys.deletion_key(doomed.universe), after.raw)
    return after


def _doomed(universe: ids.UniverseId, record: keys.UniverseDeletion) -> DoomedUniverse:
    return DoomedUniverse(universe, record, keys.DELETION.pack(record))
