"""Universes: their names, what is known of them, and their garbage-collection generation.

Per what:      universe
Changes:       name and meta never; generation before every mark
Keys:          (STORE, UNIVERSE_NAME, name) -> UniverseName(id)
               (UNIVERSE, u, META)          -> UniverseMeta
               (UNIVERSE, u, GENERATION)    -> Generation; absent means 0
Present:       name and meta from creation
"""

from __future__ import annotations

import msgspec

from worldline.base import errors, limits
from worldline.codec import tuples
from worldline.keys import space
from worldline.model import blob, ids
from worldline.model import world as worlds

_NAME = tuples.pack((int(space.Root.STORE), int(space.InStore.UNIVERSE_NAME)))
_META = space.part(space.InUniverse.META)
_GENERATION = space.part(space.InUniverse.GENERATION)


class UniverseName(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    universe: bytes

    def __post_init__(self) -> None:
        if len(self.universe) != limits.ID_BYTES:
            raise ValueError("a universe id has 16 bytes")


NAME = space.Value(space.ValueKind.UNIVERSE_NAME, UniverseName)
META = space.Value(space.ValueKind.UNIVERSE_META, worlds.UniverseMeta)
GENERATION = space.Value(space.ValueKind.GENERATION, blob.Generation)


def name_key(name: str) -> bytes:
    return _NAME + tuples.pack((ids.check_name(name, "a universe's name"),))


def names() -> tuple[bytes, bytes]:
    return tuples.prefix_range(_NAME)


def name_of(key: bytes) -> str:
    """The name that a name key is for."""
    match space.inside(_NAME, key, "a universe's name key"):
        case (str(name),):
            return _checked(name)
        case _:
            raise errors.DecodeError("not a universe's name key")


def _checked(name: str) -> str:
    try:
        return ids.check_name(name, "a universe's name")
    except errors.BadInput as error:
        raise errors.DecodeError(f"not a universe's name key: {error}") from error


def meta_key(of: ids.UniverseId) -> bytes:
    return space.universe(of) + _META


def generation_key(of: ids.UniverseId) -> bytes:
    return space.universe(of) + _GENERATION
