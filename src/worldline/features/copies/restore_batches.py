"""The keys of a backup, as they are written into another store.

What a process held is given back: a claim waits again, epochs go on above those that were. Pointers of open work are
made again. A world that takes input or runs is archived, and its record says what it was (`dormant_worlds.py`), unless
the copy is to go on at once. Stamps stay what they are: entries, answers and receipts refer to them. So the engine must
assign none that are not above all of them (`kv.raise_stamps`); `stamp_of` and `stamp_in` say which there are.
"""

from __future__ import annotations

import msgspec

from worldline.base import limits
from worldline.features.copies import dormant_worlds
from worldline.keys import keyspace_table, space
from worldline.keys import leases as lease_keys
from worldline.keys import work as work_keys
from worldline.keys import worlds as world_keys
from worldline.keys.keyspace_table import InBackup, Stamped
from worldline.keys.space import InUniverse, InWorld
from worldline.layers import ready
from worldline.layers import work as works
from worldline.model import ids, leases
from worldline.model.world_records import Status, WorldMeta
from worldline.store import kv

_STAMP = b"\x33"  # the tuple layer's type code of a stamp
_ENDS_IN_STAMP = (Stamped.APPENDED, Stamped.KEPT)
_HANDED_OVER = b"\xff" * 4
_ROOM = b"\x01" + bytes(limits.STAMP_BYTES - 1)  # 2 to the 56th versions: no store gets there by committing


class KeyCopy(msgspec.Struct, frozen=True):
    """How keys are copied. `token`: of new epochs; `source`: for people."""

    universe: ids.UniverseId
    token: bytes
    source: str
    time_us: int
    live: bool


def stamp_of(suffix: bytes) -> bytes | None:
    """The stamp that a key ends in, if an engine has assigned it. Inputs that were handed over inside of a process have
    a random one, with the last ordinal there is.
    """
    row = keyspace_table.of_suffix(suffix)
    found = suffix[-limits.STAMP_BYTES :]
    stamped = row is not None and row.stamped in _ENDS_IN_STAMP and suffix[-limits.STAMP_BYTES - 1 :][:1] == _STAMP
    return found if stamped and not found.endswith(_HANDED_OVER) else None


def stamp_in(suffix: bytes, raw: bytes) -> bytes | None:
    """The stamp that a value ends in: that of an input which was processed, maybe long after all that is unread. One
    that leaves an engine no room is not gone by: an imported world brings those of another store, as its file says
    them.
    """
    row = keyspace_table.of_suffix(suffix)
    found = raw[-limits.STAMP_BYTES :]
    stamped = row is not None and row.stamped is Stamped.IN_VALUE
    return found if stamped and found < _ROOM and not found.endswith(_HANDED_OVER) else None


def put(batch: kv.Batch, copy: KeyCopy, suffix: bytes, raw: bytes) -> None:
    """Write one key. The batch has a guard of its own."""
    row = keyspace_table.of_suffix(suffix)
    key = space.universe(copy.universe) + suffix
    if row is None or row.backup is not InBackup.REWRITTEN:
        batch.put(key, raw)
    elif row.place is InUniverse.INDEX:
        batch.put(key, _meta(copy, world_keys.INDEX, raw))
    elif row.place is InUniverse.OPEN:
        _put_work(batch, copy, key, raw)
    elif row.place is InWorld.META:
        _put_meta(batch, copy, key, raw)
    else:
        assert row.place is InWorld.EPOCH
        # Another epoch than in the backup: no batch of a holder of the original can fit here.
        number = lease_keys.EPOCH.unpack(raw).number + 1
        batch.put(key, lease_keys.EPOCH.pack(leases.Epoch(number, copy.token)))


def _put_meta(batch: kv.Batch, copy: KeyCopy, key: bytes, raw: bytes) -> None:
    at = keyspace_table.take_apart(key).at
    assert at is not None
    meta = world_keys.META.unpack(raw)
    batch.put(key, _meta(copy, world_keys.META, raw))
    if copy.live:
        if meta.status is Status.ACTIVE:
            ready.leave(batch, at, priority=ready.NORMAL)
    elif meta.status is not Status.DELETED:
        dormant_worlds.hold(batch, at, status=meta.status, source=copy.source, time_us=copy.time_us)


def _meta(copy: KeyCopy, value: space.ValueCodec[WorldMeta], raw: bytes) -> bytes:
    meta = value.unpack(raw)
    if copy.live or meta.status in (Status.DELETED, Status.ARCHIVED):
        return raw
    return value.pack(msgspec.structs.replace(meta, status=Status.ARCHIVED, revision=meta.revision + 1))


def _put_work(batch: kv.Batch, copy: KeyCopy, key: bytes, raw: bytes) -> None:
    at, intent = work_keys.open_address(copy.universe, key)
    found = works.decode(at, intent, raw)
    assert found is not None
    works.put_copy(batch, found, now_us=copy.time_us)
