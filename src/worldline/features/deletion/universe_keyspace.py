"""Universes that were deleted and are not removed completely.

Per what:      deleted universe
Changes:       with every batch that removes something of the universe
Key:           (STORE, UNIVERSE_DELETION, u)
Value:         UniverseDeletion(since when, its name, whether its worlds go with it, whether that is decided;
               how many keys and objects were removed so far)
Present:       from the batch on that closes the universe until no key and no object of it is left, or it is open again

The record is outside of the universe: the last of its keys can go before the record does.
"""

from __future__ import annotations

import msgspec

from worldline.base import errors
from worldline.codec import tuples
from worldline.keys import space
from worldline.model import ids

_DELETION = tuples.pack((int(space.KeyRoot.STORE), int(space.InStore.UNIVERSE_DELETION)))


class UniverseDeletion(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    since_us: int
    name: str
    with_worlds: bool
    decided: bool = False
    removed: int = 0
    objects: int = 0

    def __post_init__(self) -> None:
        if self.since_us < 0 or self.removed < 0 or self.objects < 0:
            raise ValueError("times and counts are not negative")


DELETION = space.ValueCodec(space.ValueKind.UNIVERSE_DELETION, UniverseDeletion)


def deletion_key(universe: ids.UniverseId) -> bytes:
    return _DELETION + tuples.pack_uuid(ids.check_id(universe, "a universe id"))


def deletions() -> tuple[bytes, bytes]:
    return tuples.prefix_range(_DELETION)


def deletion_universe(key: bytes) -> ids.UniverseId:
    """The universe that is being removed."""
    match space.inside(_DELETION, key, "the deletion of a universe"):
        case (tuples.Uuid(universe),):
            return ids.UniverseId(universe)
        case _:
            raise errors.DecodeError("not the deletion of a universe")
