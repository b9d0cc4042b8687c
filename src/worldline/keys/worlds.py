"""Worlds: their meta, their names, and the listing.

Per what:      world (meta, index), name
Changes:       meta and index with status, labels or program; a name when it is moved or freed
Keys:          (UNIVERSE, u, WORLD, w, META) -> WorldMeta
               (UNIVERSE, u, NAME, name)     -> Named(world)
               (UNIVERSE, u, INDEX, w)       -> WorldMeta, the same record, apart from the world's data so that listing
                                                does not walk journals
Present:       meta from creation and for ever (a deleted world leaves a tombstone); name while it points somewhere;
               index until the world is deleted
"""

from __future__ import annotations

import msgspec

from worldline.base import errors, limits
from worldline.codec import tuples
from worldline.keys import space
from worldline.model import ids
from worldline.model import world_records as worlds

_META = space.part(space.InWorld.META)
_WORLD = space.part(space.InUniverse.WORLD)
_NAME = space.part(space.InUniverse.NAME)
# Beside the worlds, not inside: a listing would else walk over all of their data.
_INDEX = space.part(space.InUniverse.INDEX)


class NameRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    world: bytes

    def __post_init__(self) -> None:
        if len(self.world) != limits.ID_BYTES:
            raise ValueError("a world id has 16 bytes")


META = space.ValueCodec(space.ValueKind.WORLD_META, worlds.WorldMeta)
NAME = space.ValueCodec(space.ValueKind.NAME, NameRecord)
INDEX = space.ValueCodec(space.ValueKind.INDEX, worlds.WorldMeta)


def all_worlds(universe: ids.UniverseId) -> tuple[bytes, bytes]:
    """Every key of every world, also of those that are deleted."""
    return tuples.prefix_range(space.universe(universe) + _WORLD)


def world_of(universe: ids.UniverseId, key: bytes) -> ids.WorldId:
    """Whose key this is, whatever it is."""
    match space.inside(space.universe(universe) + _WORLD, key, "a key of a world of this universe"):
        case (tuples.Uuid(value), *_):
            return ids.WorldId(value)
        case _:
            raise errors.DecodeError("not a key of a world of this universe")


def behind(at: ids.Address) -> bytes:
    """Where the keys of the next world begin."""
    return tuples.prefix_range(space.world(at))[1]


def meta_key(at: ids.Address) -> bytes:
    return space.world(at) + _META


def name_key(universe: ids.UniverseId, name: str) -> bytes:
    return space.universe(universe) + _NAME + tuples.pack((ids.check_name(name, "a world's name"),))


def names(universe: ids.UniverseId) -> tuple[bytes, bytes]:
    return tuples.prefix_range(space.universe(universe) + _NAME)


def name_of(universe: ids.UniverseId, key: bytes) -> str:
    """The name that a name key is for."""
    match space.inside(space.universe(universe) + _NAME, key, "a name key of this universe"):
        case (str(name),):
            return _checked(name)
        case _:
            raise errors.DecodeError("not a name key")


def _checked(name: str) -> str:
    try:
        return ids.check_name(name, "a world's name")
    # A stored key may hold any text: here, what no name may be is damage, and no fault of the caller.
    except errors.BadInput as error:
        raise errors.DecodeError(f"not a name key: {error}") from error


def index_key(at: ids.Address) -> bytes:
    return space.universe(at.universe) + _INDEX + tuples.pack((tuples.Uuid(at.world),))


def index(universe: ids.UniverseId) -> tuple[bytes, bytes]:
    return tuples.prefix_range(space.universe(universe) + _INDEX)


def index_world(universe: ids.UniverseId, key: bytes) -> ids.WorldId:
    """The world an index key names."""
    match space.inside(space.universe(universe) + _INDEX, key, "an index key of this universe"):
        case (tuples.Uuid(value),):
            return ids.WorldId(value)
        case _:
            raise errors.DecodeError("not an index key")
