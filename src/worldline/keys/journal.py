"""The journal: the head, and frames of entries.

Per what:      world
Changes:       the head with every step; a frame never
Keys:          (UNIVERSE, u, WORLD, w, HEAD)                 -> Head
               (UNIVERSE, u, WORLD, w, JOURNAL, last height) -> joined entries (`codec/frame.py`)
Present:       the head from creation; a frame until compaction moves it into a segment

A frame is filed under its last height, so that the frame holding height h is the first one at or after h.
"""

from __future__ import annotations

from worldline.base import errors
from worldline.codec import frame, tuples
from worldline.keys import space
from worldline.model import ids, journal

_HEAD = space.part(space.InWorld.HEAD)
_JOURNAL = space.part(space.InWorld.JOURNAL)

HEAD = space.Value(space.ValueKind.HEAD, journal.Head)


def head_key(at: ids.Address) -> bytes:
    return space.world(at) + _HEAD


def frame_key(at: ids.Address, last_height: int) -> bytes:
    assert last_height > 0
    return space.world(at) + _JOURNAL + tuples.pack((last_height,))


def frames(at: ids.Address, *, above: int = 0) -> tuple[bytes, bytes]:
    """The frames that hold entries above this height. The first may also hold some at or below it."""
    prefix = space.world(at) + _JOURNAL
    return prefix + tuples.pack((above + 1,)), tuples.prefix_range(prefix)[1]


def frame_height(at: ids.Address, key: bytes) -> int:
    match space.inside(space.world(at) + _JOURNAL, key, "a frame key of this world"):
        case (int(height),) if height > 0:
            return height
        case _:
            raise errors.DecodeError("not a frame key")


def pack_frame(entries: list[bytes]) -> bytes:
    return frame.wrap(int(space.ValueKind.JOURNAL), frame.join(entries))


def unpack_frame(data: bytes) -> list[bytes]:
    return frame.split(frame.unwrap(int(space.ValueKind.JOURNAL), data))
