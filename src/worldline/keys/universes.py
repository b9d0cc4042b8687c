"""Universes: their names, what is known of them, their garbage-collection generation, what others may send to them, and
what their own worlds may do.

Per what:      universe
Changes:       name and meta never; generation before every mark; grants when allowed or denied, a change of them never
Keys:          (STORE, UNIVERSE_NAME, name) -> UniverseName(id)
               (UNIVERSE, u, META)          -> UniverseMeta
               (UNIVERSE, u, GENERATION)    -> Generation; absent means 0
               (UNIVERSE, u, GRANTS)        -> Grants; absent means that no other universe may send here, and
                                               that worlds of this one may do everything
               (UNIVERSE, u, GRANT_LOG, stamp) -> GrantChange
Present:       name and meta from creation; grants from their first change on; a change for ever
"""

from __future__ import annotations

import msgspec

from worldline.base import errors, limits
from worldline.codec import tuples
from worldline.keys import space
from worldline.model import blobs, ids
from worldline.model import world_records as worlds

_NAME = tuples.pack((int(space.KeyRoot.STORE), int(space.InStore.UNIVERSE_NAME)))
_META = space.part(space.InUniverse.META)
_GENERATION = space.part(space.InUniverse.GENERATION)
_GRANTS = space.part(space.InUniverse.GRANTS)
_GRANT_LOG = space.part(space.InUniverse.GRANT_LOG)
_STAMP = b"\x33"  # the tuple layer's type code of a stamp, which the engine completes


class UniverseName(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    universe: bytes

    def __post_init__(self) -> None:
        if len(self.universe) != limits.ID_BYTES:
            raise ValueError("a universe id has 16 bytes")


NAME = space.ValueCodec(space.ValueKind.UNIVERSE_NAME, UniverseName)
META = space.ValueCodec(space.ValueKind.UNIVERSE_META, worlds.UniverseMeta)
GENERATION = space.ValueCodec(space.ValueKind.GENERATION, blobs.Generation)
GRANTS = space.ValueCodec(space.ValueKind.GRANTS, worlds.Grants)
GRANT_CHANGE = space.ValueCodec(space.ValueKind.GRANT_CHANGE, worlds.GrantChange)


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
    # A stored key may hold any text: here, what no name may be is damage, and no fault of the caller.
    except errors.BadInput as error:
        raise errors.DecodeError(f"not a universe's name key: {error}") from error


def meta_key(of: ids.UniverseId) -> bytes:
    return space.universe(of) + _META


def generation_key(of: ids.UniverseId) -> bytes:
    return space.universe(of) + _GENERATION


def grants_key(of: ids.UniverseId) -> bytes:
    return space.universe(of) + _GRANTS


def grant_log_prefix(of: ids.UniverseId) -> bytes:
    """What an append takes; the engine's stamp completes the key."""
    return space.universe(of) + _GRANT_LOG + _STAMP


def grant_log_key(of: ids.UniverseId, stamp: bytes) -> bytes:
    assert len(stamp) == limits.STAMP_BYTES
    return grant_log_prefix(of) + stamp


def grant_log(of: ids.UniverseId) -> tuple[bytes, bytes]:
    return tuples.prefix_range(grant_log_prefix(of))
