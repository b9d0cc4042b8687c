"""The journal: the head, and frames of entries and changes.

Per what:      world
Changes:       the head with every step; a frame never
Keys:          (UNIVERSE, u, WORLD, w, HEAD)                       -> Head
               (UNIVERSE, u, WORLD, w, JOURNAL, last height)       -> a frame
               (UNIVERSE, u, WORLD, w, JOURNAL, last height, part) -> what the frame had no room for; parts from 1 on
Present:       the head from creation; a frame until compaction moves it into a segment

A frame is filed under its last height, so that the frame holding height h is the first one at or after h. It is::

    bytes 0-1   how many entries it holds
    byte 2      how many parts follow it
    bytes 3-    the entries, joined (`codec/frame.py`); then the changes

The changes are joined, too: one string for each step that ends in the frame (`layers/step_changes.py`). What there is
no room for goes into parts, cut anywhere: a part is like a frame with no entries, byte 2 is its own number. Readers
that want entries take them and leave the rest.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from worldline.base import errors
from worldline.codec import frame, tuples
from worldline.keys import space
from worldline.model import ids, journal

_HEAD = space.part(space.InWorld.HEAD)
_JOURNAL = space.part(space.InWorld.JOURNAL)
_KIND: Final = int(space.ValueKind.JOURNAL)
_HEADER: Final = struct.Struct(">HB")

HEAD = space.ValueCodec(space.ValueKind.HEAD, journal.Head)
PARTS_MAX: Final = 255
HEADER_BYTES: Final = _HEADER.size


class Frame(msgspec.Struct, frozen=True, gc=False):
    """A frame, or a part of one (no entries; `parts` is its number), as it was read."""

    entries: list[bytes]
    changes: bytes  # of the joined changes, what stands here
    parts: int


def head_key(at: ids.Address) -> bytes:
    return space.world(at) + _HEAD


def frame_prefix(at: ids.Address) -> bytes:
    """What the keys of all frames of a world begin with."""
    return space.world(at) + _JOURNAL


def frame_key(at: ids.Address, last_height: int) -> bytes:
    assert last_height > 0
    return space.world(at) + _JOURNAL + tuples.pack_number(last_height)


def part_key(at: ids.Address, last_height: int, part: int) -> bytes:
    """Behind the frame, and before the next."""
    assert 0 < part <= PARTS_MAX
    return frame_key(at, last_height) + tuples.pack((part,))


def frames(at: ids.Address, *, above: int = 0) -> tuple[bytes, bytes]:
    """The frames that hold entries above this height. The first may also hold some at or below it."""
    prefix = space.world(at) + _JOURNAL
    # Parts of the frame that ends at this very height have longer keys, but sort below this one.
    return prefix + tuples.pack((above + 1,)), tuples.prefix_range(prefix)[1]


def frame_place(at: ids.Address, key: bytes) -> tuple[int, int]:
    """The last height of a frame, and 0; or the number of the part of it that this is the key of."""
    match space.inside(space.world(at) + _JOURNAL, key, "a frame key of this world"):
        case (int(height),) if height > 0:
            return height, 0
        case (int(height), int(part)) if height > 0 and 0 < part <= PARTS_MAX:
            return height, part
        case _:
            raise errors.DecodeError("not a frame key")


def frame_height(at: ids.Address, key: bytes) -> int:
    height, part = frame_place(at, key)
    if part:
        raise errors.DecodeError(f"not a frame key: it is that of part {part} of one")
    return height


def pack_frame(entries: list[bytes], changes: bytes = b"", *, parts: int = 0) -> bytes:
    """`changes`: of the joined changes, what has room here; `parts`: how many values have the rest."""
    return frame.wrap(_KIND, _HEADER.pack(len(entries), parts) + frame.join(entries) + changes)


def pack_whole(chunks: list[bytes], *, entries: int) -> bytes:
    """A frame that has room for all its changes. `chunks`: so many entries, then the changes."""
    return frame.wrap(_KIND, frame.join(chunks, _HEADER.pack(entries, 0)))


def pack_part(changes: bytes, *, part: int) -> bytes:
    assert changes
    return frame.wrap(_KIND, _HEADER.pack(0, part) + changes)


def unpack_frame(data: bytes, *, checked: bool = True) -> Frame:
    body = frame.unwrap(_KIND, data, checked=checked)
    if len(body) < HEADER_BYTES:
        raise errors.DecodeError("a frame without its header")
    count, parts = _HEADER.unpack_from(body)
    entries, end = frame.take(body, count, start=HEADER_BYTES)
    return Frame(entries, body[end:], parts)
