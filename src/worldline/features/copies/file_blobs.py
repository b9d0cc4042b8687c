"""The blobs of a world file, read from the file itself: to check one, nothing is copied to anywhere.

A blob is found by where its record stands, which is remembered when the file is first read through. A block is unpacked
again to read one of its blobs, so the last few are kept: nodes of a state stand together. What is read is checked
against its address, whatever has happened to the file meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Final

from worldline.base import errors, limits
from worldline.base.bounded_map import BoundedMap
from worldline.codec import digest
from worldline.features.copies import pack_file
from worldline.features.copies.copy_bounds import CopyBounds
from worldline.features.copies.world_file import Tag
from worldline.layers import blobs as blob_layer

BLOCKS_KEPT: Final = 8
_BITS: Final = 32  # of the size of a blob, and of its place in a block

assert max(limits.BLOB_BYTES_MAX, limits.PACK_BLOCK_BYTES_MAX) < 1 << _BITS


class FileBlobs:
    """`file`: a descriptor of the file. `keep` of the bounds is asked about all that is read between two `begin`s: of
    one state, or one step.
    """

    def __init__(self, file: int, bounds: CopyBounds) -> None:
        self._file = file
        self._bounds = bounds
        self._places: dict[bytes, int] = {}  # block, place in it and size, in one number: there may be many
        # Those that were used last, and where the next begins.
        self._blocks: BoundedMap[int, tuple[bytes, int]] = BoundedMap(BLOCKS_KEPT)
        self._given = 0

    def __contains__(self, address: bytes) -> bool:
        return address in self._places

    def add(self, address: bytes, first: pack_file.PlacedRecord, size: int) -> None:
        """A blob whose first record stands there."""
        self._places[address] = ((first.block << _BITS) | first.start) << _BITS | size

    def size(self, address: bytes) -> int:
        return self._places[address] & ((1 << _BITS) - 1)

    def begin(self) -> None:
        """What was given until now is not kept any more."""
        self._given = 0

    async def get(self, of: bytes, /) -> bytes:
        found = self._places.get(of)
        if found is None:
            raise errors.NotFound(f"the blob {of.hex()} is not in the file, or behind what refers to it")
        # Counted before it is read: what is too large must not get into memory.
        self._given += self.size(of) + limits.COPY_RECORD_BYTES
        self._bounds.keep(self._given)
        place = found >> _BITS
        data = self._whole(place >> _BITS, place & ((1 << _BITS) - 1))
        digest.check(data, of, "a blob of the file")
        return data

    async def get_many(self, addresses: Sequence[bytes], /) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        for of in addresses:
            try:
                found[of] = await self.get(of)
            except (errors.NotFound, errors.Corrupt) as error:
                raise blob_layer.BadBlob(of, str(error)) from error
        return found

    def _whole(self, block: int, start: int) -> bytes:
        """The blob whose first record stands there. Its pieces follow each other, in this block and the next ones."""
        pieces: list[bytes] = []
        while True:
            body, behind = self._block(block)
            for tag, data in pack_file.records_from(body, start):
                pieces.append(data)
                if tag != Tag.PIECE:  # only the last record of a blob is no piece
                    return b"".join(pieces)
            block, start = behind, 0

    def _block(self, place: int) -> tuple[bytes, int]:
        found = self._blocks.get(place)
        if found is None:
            body, size = pack_file.block_at(reading(self._file, place))
            found = body, place + size
        self._blocks[place] = found  # also one that was known: the order is that of use
        return found


def reading(file: int, place: int = 0) -> Callable[[int], bytes]:
    """Reads on from a place in a file, whatever else is read from it meanwhile."""

    def read(count: int) -> bytes:
        nonlocal place
        # It leaves the position of the descriptor alone, which several readers share.
        found = os.pread(file, count, place)
        place += len(found)
        return found

    return read
