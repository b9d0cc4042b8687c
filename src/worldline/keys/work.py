"""Open work and the one due queue for effects and timers.

Per what:      intent
Changes:       the authority with every claim, renewal, back-off; the pointer moves with its due time
Keys:          (UNIVERSE, u, OPEN, w, intent)                     -> Work
               (UNIVERSE, u, DUE, queue, 0, due_us, w, intent)    -> Due
Present:       the authority from the step that asked until the step that consumed the answer; the pointer while the
               work is WAITING or CLAIMED

The pointer is derived: one that does not match its authority is garbage, and any reader deletes it. The queue is in the
key, so that no reader has to filter after a limit; ties of time are broken by (world, intent). The 0 is reserved: a
queue could be split by it.
"""

from __future__ import annotations

import functools

import msgspec

from worldline.base import errors
from worldline.codec import tuples
from worldline.keys import space
from worldline.model import ids, work

_OPEN = space.part(space.InUniverse.OPEN)
_DUE = space.part(space.InUniverse.DUE)
_RESERVED = 0


class Due(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    kind: work.WorkKind


class Pointer(msgspec.Struct, frozen=True):
    """A due key, taken apart."""

    queue: str
    due_us: int
    at: ids.Address
    intent: ids.IntentId


WORK = space.ValueCodec(space.ValueKind.WORK, work.Work)
DUE = space.ValueCodec(space.ValueKind.DUE, Due)
DUES = {kind: DUE.pack(Due(kind)) for kind in work.WorkKind}  # there are few, and each is stored very often


def open_key(at: ids.Address, intent: ids.IntentId) -> bytes:
    return _open(at) + tuples.pack_uuid(ids.check_id(intent, "an intent id"))


def open_work(at: ids.Address) -> tuple[bytes, bytes]:
    """Everything a world has open."""
    return tuples.prefix_range(_open(at))


def open_all(universe: ids.UniverseId) -> tuple[bytes, bytes]:
    """Everything that the worlds of a universe have open."""
    return tuples.prefix_range(space.universe(universe) + _OPEN)


def open_address(universe: ids.UniverseId, key: bytes) -> tuple[ids.Address, ids.IntentId]:
    """Whose intent an open-work key is, and which."""
    match space.inside(space.universe(universe) + _OPEN, key, "an open-work key of this universe"):
        case (tuples.Uuid(world), tuples.Uuid(intent)):
            return ids.Address(universe, ids.WorldId(world)), ids.IntentId(intent)
        case _:
            raise errors.DecodeError("not an open-work key")


def open_intent(at: ids.Address, key: bytes) -> ids.IntentId:
    match space.inside(_open(at), key, "an open-work key of this world"):
        case (tuples.Uuid(intent),):
            return ids.IntentId(intent)
        case _:
            raise errors.DecodeError("not an open-work key")


def due_key(at: ids.Address, intent: ids.IntentId, *, queue: str, due_us: int) -> bytes:
    assert due_us >= 0
    where = tuples.pack_uuid(at.world) + tuples.pack_uuid(intent)
    return _queue(at.universe, queue) + tuples.pack_number(due_us) + where


def queue_prefix(universe: ids.UniverseId, queue: str) -> bytes:
    return _queue(universe, queue)


@functools.lru_cache(maxsize=1024)
def _queue(universe: ids.UniverseId, queue: str) -> bytes:
    return space.universe(universe) + _DUE + tuples.pack((ids.check_name(queue, "a queue's name"), _RESERVED))


def queues_prefix(universe: ids.UniverseId, beginning: str) -> bytes:
    """What the pointers of all queues begin with whose names begin so. No range: only for hints."""
    # Without the byte that ends a text: longer names begin so, too.
    return space.universe(universe) + _DUE + tuples.pack((beginning,))[:-1]


def due_until(universe: ids.UniverseId, *, queue: str, until_us: int) -> tuple[bytes, bytes]:
    """Pointers due at or before this time, oldest first."""
    prefix = queue_prefix(universe, queue)
    # The end of a range is outside of it, and what is due at this very time is due.
    return prefix, prefix + tuples.pack((until_us + 1,))


def due_all(universe: ids.UniverseId) -> tuple[bytes, bytes]:
    return tuples.prefix_range(space.universe(universe) + _DUE)


def pointer(universe: ids.UniverseId, key: bytes) -> Pointer:
    match space.inside(space.universe(universe) + _DUE, key, "a due key of this universe"):
        case (str(queue), int(reserved), int(due_us), tuples.Uuid(world), tuples.Uuid(intent)) if (
            min(reserved, due_us) >= 0
        ):
            at = ids.Address(universe, ids.WorldId(world))
            return Pointer(queue, due_us, at, ids.IntentId(intent))
        case _:
            raise errors.DecodeError("not a due key")


@functools.lru_cache(maxsize=65536)
def _open(at: ids.Address) -> bytes:
    return space.universe(at.universe) + _OPEN + tuples.pack_uuid(at.world)
