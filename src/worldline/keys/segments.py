"""The index of segments: where entries are that no frame holds any more.

Per what:      world
Changes:       never, but that the oldest segments become one Dropped, which grows
Keys:          (UNIVERSE, u, WORLD, w, SEGMENT, last height) -> Segment | Dropped
Present:       from the batch on that deletes the frames of its heights; Dropped from the batch on that deletes the
               segments of its heights, or an earlier Dropped

A segment is filed under its last height, like a frame: the one that holds height h is the first at or after h, if it
begins at or before h. Segments follow each other without a gap from the first height of the world's own journal on;
frames continue behind the last of them. Where entries are not kept for ever, the first of these records is a Dropped:
it stands for the heights that are gone, and has the head that the chain continues from.
"""

from __future__ import annotations

from worldline.base import errors
from worldline.codec import frame, tuples
from worldline.keys import space
from worldline.model import ids, journal

_SEGMENT = space.part(space.InWorld.SEGMENT)

SEGMENT = space.ValueCodec(space.ValueKind.SEGMENT, journal.Segment)
DROPPED = space.ValueCodec(space.ValueKind.DROPPED, journal.DroppedEntries)


def segment_key(at: ids.Address, last_height: int) -> bytes:
    assert last_height > 0
    return space.world(at) + _SEGMENT + tuples.pack_number(last_height)


def segments(at: ids.Address, *, above: int = 0) -> tuple[bytes, bytes]:
    """The segments that hold entries above this height. The first may also hold some at or below it."""
    prefix = space.world(at) + _SEGMENT
    return prefix + tuples.pack((above + 1,)), tuples.prefix_range(prefix)[1]


def unpack(raw: bytes) -> journal.Segment | journal.DroppedEntries:
    """A record of the index, of either kind."""
    # Both kinds lie in one keyspace: the kind in the envelope tells which a value is.
    return DROPPED.unpack(raw) if frame.kind_of(raw) == space.ValueKind.DROPPED else SEGMENT.unpack(raw)


def segment_height(at: ids.Address, key: bytes) -> int:
    """The last height of the segment that this is the key of."""
    match space.inside(space.world(at) + _SEGMENT, key, "a segment key of this world"):
        case (int(height),) if height > 0:
            return height
        case _:
            raise errors.DecodeError("not a segment key")
