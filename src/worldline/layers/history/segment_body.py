"""The body of a segment: whole steps that follow each other, compressed block by block.

One step can be read without decoding all of it.

::

    byte 0       the version of this form, 1
    bytes 1-4    how long the index is
    the index    a canonical list: the chain before the first step; its height and its number; whether changes are
                 here; then, for each block: its last height and its last step, its length as it stands here, and
                 uncompressed
    the blocks   one after the other, each a zstandard frame

    of a block   bytes 0-3   how many entries
                 bytes 4-7   how many steps
                 the entries, each after its length in four bytes
                 32 bytes for each step: the digest of its changes, which the chain covers
                 if changes are here: those of each step as they are stored, after their length in four bytes

A body is checked three times before it is used: its sha256 is in the index record (`keys/segments.py`), its index must
say what that record says, and `check` recomputes the chain over all steps. Compressors differ between versions, so the
bytes of a body are addressed by their hash and never compared with others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from worldline.base import errors, limits
from worldline.codec import canonical, delta, digest, frame
from worldline.model import ids
from worldline.model.journal import Segment

VERSION: Final = 1
_NUMBER_BYTES: Final = 4
_HEADER_BYTES: Final = 1 + _NUMBER_BYTES
_INDEX_FIELDS: Final = 4  # before those of blocks
_BLOCK_FIELDS: Final = 4
_DIGEST_BYTES: Final = limits.DIGEST_BYTES


class SegmentStep(msgspec.Struct, frozen=True, gc=False):
    """One step on its way into a segment: its entries as bytes, the digest of its changes, and these."""

    number: int
    height: int  # of its last entry
    data: list[bytes]
    covered: bytes
    changes: bytes


class PlacedBlock(msgspec.Struct, frozen=True, gc=False):
    """Where a block is in a body, and what it has."""

    first_height: int
    last_height: int
    last_step: int
    start: int
    end: int
    length: int  # uncompressed


class Block(msgspec.Struct, frozen=True, gc=False):
    """Whole steps out of a segment, as they were read. `changes` is None if they were dropped."""

    at: ids.Address
    first_height: int
    last_height: int
    entries: list[bytes]
    covered: list[bytes]
    changes: list[bytes] | None


class SegmentBuilder:
    """Makes a body of steps, which are given one after the other. A block is compressed as soon as it is full."""

    def __init__(self, *, above: int, step: int, chain: bytes, with_changes: bool) -> None:
        self._index: list[Any] = [chain, above + 1, step + 1, int(with_changes)]
        self._with_changes = with_changes
        self._steps: list[SegmentStep] = []
        self._size = 0
        self._blocks: list[bytes] = []

    def add(self, step: SegmentStep) -> None:
        self._steps.append(step)
        self._size += sum(map(len, step.data)) + (len(step.changes) if self._with_changes else 0)
        if self._size >= limits.SEGMENT_BLOCK_BYTES:
            self._end_block()

    def body(self) -> bytes:
        """All of it. Nothing is added afterwards."""
        if self._steps:
            self._end_block()
        assert self._blocks, "a segment has at least one step"
        index = canonical.encode(self._index)
        return bytes([VERSION]) + len(index).to_bytes(_NUMBER_BYTES, "big") + index + b"".join(self._blocks)

    def _end_block(self) -> None:
        raw = _pack_block(self._steps, with_changes=self._with_changes)
        # Readers refuse a longer block before they unpack it, so none may be written.
        if len(raw) > limits.SEGMENT_BLOCK_BYTES_MAX:
            raise errors.TooLarge("a step in a segment", size=len(raw), limit=limits.SEGMENT_BLOCK_BYTES_MAX)
        packed = delta.pack(raw)
        last = self._steps[-1]
        self._index += (last.height, last.number, len(packed), len(raw))
        self._blocks.append(packed)
        self._steps, self._size = [], 0


class Body:
    """A segment as it was read. `DecodeError` for anything that its record does not name."""

    def __init__(self, at: ids.Address, record: Segment, data: bytes) -> None:
        self.at = at
        self.record = record
        # First the hash: nothing below parses bytes that are not those that were written.
        digest.check(data, record.digest, f"the segment up to height {record.last_height}")
        if len(data) != record.size:
            raise errors.DecodeError(f"a segment of {len(data)} bytes; its record says {record.size}")
        self._data = data
        fields, start = _index_of(data)
        self.chain: bytes = fields[0]  # before its first step
        self.places = _places(fields, start)
        last = self.places[-1]
        said = (fields[1], last.last_height, fields[2], last.last_step, bool(fields[3]))
        if said != (
            record.first_height,
            record.last_height,
            record.first_step,
            record.last_step,
            record.changes,
        ) or last.end != len(data):
            raise errors.DecodeError(f"the segment up to height {record.last_height} is not what its record says")

    def blocks(self, *, above: int) -> Iterator[Block]:
        """The blocks with entries above a height, one after the other."""
        for place in self.places:
            if place.last_height > above:
                yield self._block(place)

    def _block(self, place: PlacedBlock) -> Block:
        raw = delta.unpack(self._data[place.start : place.end], length=place.length)
        entries, covered, changes = _unpack_block(raw, with_changes=self.record.changes)
        if len(entries) != place.last_height - place.first_height + 1:
            raise errors.DecodeError(f"the block up to height {place.last_height} has {len(entries)} entries")
        return Block(self.at, place.first_height, place.last_height, entries, covered, changes)


def _pack_block(steps: Sequence[SegmentStep], *, with_changes: bool) -> bytes:
    data = [each for step in steps for each in step.data]
    pieces = [len(data).to_bytes(_NUMBER_BYTES, "big"), len(steps).to_bytes(_NUMBER_BYTES, "big")]
    pieces += map(frame.chunk, data)
    pieces += [step.covered for step in steps]
    if with_changes:
        pieces += [frame.chunk(step.changes) for step in steps]
    return b"".join(pieces)


def _unpack_block(raw: bytes, *, with_changes: bool) -> tuple[list[bytes], list[bytes], list[bytes] | None]:
    start = 2 * _NUMBER_BYTES
    if len(raw) < start:
        raise errors.DecodeError("a block without its header")
    entries, end = frame.take(raw, int.from_bytes(raw[:_NUMBER_BYTES], "big"), start=start)
    count = int.from_bytes(raw[_NUMBER_BYTES:start], "big")
    behind = end + count * _DIGEST_BYTES
    # The count comes from the file: without `min`, a damaged one would be a loop of billions.
    starts = range(end, min(behind, len(raw)), _DIGEST_BYTES)
    covered = [raw[each : each + _DIGEST_BYTES] for each in starts]
    changes = None
    if with_changes:
        changes, behind = frame.take(raw, count, start=behind)
    if behind != len(raw) or not entries or not count:
        raise errors.DecodeError("a block that does not end where it says")
    return entries, covered, changes


def _index_of(data: bytes) -> tuple[list[Any], int]:
    """The fields of the index, each of its type, and where the blocks begin."""
    if len(data) < _HEADER_BYTES or data[0] != VERSION:
        raise errors.DecodeError(f"not a segment of version {VERSION}")
    start = _HEADER_BYTES + int.from_bytes(data[1:_HEADER_BYTES], "big")
    if start > len(data):
        raise errors.DecodeError("a segment whose index is cut off")
    fields: Any = canonical.decode(data[_HEADER_BYTES:start])
    if type(fields) is not list or len(fields) <= _INDEX_FIELDS or (len(fields) - _INDEX_FIELDS) % _BLOCK_FIELDS:
        raise errors.DecodeError("the index of a segment has other fields")
    chain, *numbers = fields
    if type(chain) is not bytes or len(chain) != _DIGEST_BYTES:
        raise errors.DecodeError("the index of a segment has no chain digest")
    if any(type(each) is not int or each < 0 for each in numbers) or fields[3] > 1:
        raise errors.DecodeError("the index of a segment has other fields")
    return fields, start


def _places(fields: list[Any], start: int) -> list[PlacedBlock]:
    height, step = fields[1] - 1, fields[2] - 1
    found: list[PlacedBlock] = []
    for index in range(_INDEX_FIELDS, len(fields), _BLOCK_FIELDS):
        last_height, last_step, packed, length = fields[index : index + _BLOCK_FIELDS]
        # The length is the memory that unpacking takes, so it is bounded here, before any block is unpacked.
        if last_height <= height or last_step <= step or length > limits.SEGMENT_BLOCK_BYTES_MAX:
            raise errors.DecodeError("the blocks of a segment do not follow each other")
        found.append(PlacedBlock(height + 1, last_height, last_step, start, start + packed, length))
        height, step, start = last_height, last_step, start + packed
    return found
