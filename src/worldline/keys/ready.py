"""Hints that a world has something to do.

Per what:      world and priority
Changes:       rewritten by producers, deleted by the worker that looked
Key:           (UNIVERSE, u, READY, priority, w)
Value:         Ready, then the stamp of the item that caused it, so that each writing is a value of its own
Present:       maybe, while there is something to do; a hint, never the truth
"""

from __future__ import annotations

import functools

import msgspec

from worldline.base import errors
from worldline.codec import tuples
from worldline.keys import space
from worldline.model import ids

_READY = space.part(space.InUniverse.READY)


class Ready(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    pass


READY = space.Value(space.ValueKind.READY, Ready)
PACKED = READY.pack(Ready())  # there is one


def ready_key(at: ids.Address, priority: int) -> bytes:
    assert priority >= 0
    return space.universe(at.universe) + _READY + tuples.pack((priority, tuples.Uuid(at.world)))


def ready(universe: ids.UniverseId, *, priority: int | None = None) -> tuple[bytes, bytes]:
    prefix = space.universe(universe) + _READY
    return tuples.prefix_range(prefix if priority is None else prefix + tuples.pack((priority,)))


def ready_world(universe: ids.UniverseId, key: bytes) -> tuple[int, ids.WorldId]:
    return _ready_world(universe, key)


@functools.lru_cache(maxsize=65536)
def _ready_world(universe: ids.UniverseId, key: bytes) -> tuple[int, ids.WorldId]:
    match space.inside(space.universe(universe) + _READY, key, "a ready key of this universe"):
        case (int(priority), tuples.Uuid(world)) if priority >= 0:
            return priority, ids.WorldId(world)
        case _:
            raise errors.DecodeError("not a ready key")
