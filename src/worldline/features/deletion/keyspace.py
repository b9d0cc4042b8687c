"""Worlds that were deleted and are not removed completely.

Per what:      deleted world
Changes:       with every batch that removes something of the world
Key:           (UNIVERSE, u, DELETION, w)
Value:         Deletion(since when, how many keys were removed so far)
Present:       from the batch on that deletes the world until nothing of it is left but its tombstone

So what is unfinished is found without a look at any other world.
"""

from __future__ import annotations

import msgspec

from worldline.base import errors
from worldline.codec import tuples
from worldline.keys import space
from worldline.model import ids

_DELETION = space.part(space.InUniverse.DELETION)


class DeletionRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    since_us: int
    removed: int = 0

    def __post_init__(self) -> None:
        if self.since_us < 0 or self.removed < 0:
            raise ValueError("times and counts are not negative")


DELETION = space.ValueCodec(space.ValueKind.DELETION, DeletionRecord)


def deletion_key(at: ids.Address) -> bytes:
    return space.universe(at.universe) + _DELETION + tuples.pack_uuid(ids.check_id(at.world, "a world id"))


def deletions(universe: ids.UniverseId) -> tuple[bytes, bytes]:
    return tuples.prefix_range(space.universe(universe) + _DELETION)


def deletion_world(universe: ids.UniverseId, key: bytes) -> ids.WorldId:
    """The world that is being removed."""
    match space.inside(space.universe(universe) + _DELETION, key, "a deletion of this universe"):
        case (tuples.Uuid(world),):
            return ids.WorldId(world)
        case _:
            raise errors.DecodeError("not a deletion")
