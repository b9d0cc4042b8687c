"""Ready hints: a world may have something to do.

Per what:      input, or change of a world's place; world with a blocked run
Changes:       never; appended by producers, deleted by the worker that read the inbox after it had seen the hint
Key:           (UNIVERSE, u, HINT, priority, stamp); of a blocked run, the end of the world's id instead of a stamp
Value:         Hint(world)
Present:       maybe, while there is something to do; a hint, never the truth
"""

from __future__ import annotations

import functools

import msgspec

from worldline.base import limits
from worldline.codec import tuples
from worldline.keys import space
from worldline.model import ids

_HINT = space.part(space.InUniverse.HINT)
_STAMP = b"\x33"  # the tuple layer's type code of a stamp, which the engine completes
BLOCKED = 3  # the priority of the hint that says that a run is blocked


class HintRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    world: bytes


HINT = space.ValueCodec(space.ValueKind.HINT, HintRecord)


def hint_prefix(universe: ids.UniverseId, priority: int) -> bytes:
    """What an append takes; the engine's stamp completes the key."""
    return _hint_prefix(universe, priority)


@functools.lru_cache(maxsize=1024)
def _hint_prefix(universe: ids.UniverseId, priority: int) -> bytes:
    assert priority >= 0
    return space.universe(universe) + _HINT + tuples.pack((priority,)) + _STAMP


def hint_key(universe: ids.UniverseId, priority: int, stamp: bytes) -> bytes:
    assert len(stamp) == limits.STAMP_BYTES
    return hint_prefix(universe, priority) + stamp


def hints(universe: ids.UniverseId, priority: int, *, start: bytes = b"") -> tuple[bytes, bytes]:
    """Hints of one priority, from this stamp on."""
    assert len(start) <= limits.STAMP_BYTES
    prefix = hint_prefix(universe, priority)
    return prefix + start, tuples.prefix_range(prefix)[1]


def blocked_key(at: ids.Address) -> bytes:
    """The one hint that says that a world has a blocked run. Of a world's id, the end is random."""
    return hint_key(at.universe, BLOCKED, ids.check_id(at.world, "a world id")[-limits.STAMP_BYTES :])


def every_hint(universe: ids.UniverseId) -> tuple[bytes, bytes]:
    """Hints of all priorities."""
    return tuples.prefix_range(space.universe(universe) + _HINT)


def former_hints(universe: ids.UniverseId) -> tuple[bytes, bytes]:
    """What releases that wrote format 1.1 have left; nothing reads it as hints."""
    return tuples.prefix_range(space.universe(universe) + space.part(space.InUniverse.READY))


def hint_value(world: ids.WorldId) -> bytes:
    return _hint_value(world)


# One world leaves many hints, and all have the same bytes.
@functools.lru_cache(maxsize=65536)
def _hint_value(world: ids.WorldId) -> bytes:
    return HINT.pack(HintRecord(ids.check_id(world, "a world id")))


def hint_world(raw: bytes) -> ids.WorldId:
    """The world that a stored hint names."""
    return _hint_world(raw)


@functools.lru_cache(maxsize=65536)
def _hint_world(raw: bytes) -> ids.WorldId:
    return ids.WorldId(ids.check_id(HINT.unpack(raw).world, "a world id"))
