"""Pack files: records in compressed blocks, each with a checksum, and an end that says that nothing is missing.

::

    bytes 0-7     magic: 89 57 4C 50 0D 0A 1A 0A; a transfer that changes line ends or strips bits breaks it
    bytes 8-9     version, 1
    bytes 10-11   what the file is (`PackKind`)
    blocks        one after the other
    the end       once

    of a block    byte 0       1
                  bytes 1-4    length of the body as it stands here
                  bytes 5-8    length of the body uncompressed
                  bytes 9-12   CRC-32 over bytes 0 to 8 and the body as it stands here
                  the body     a zstandard frame of records

    of the end    byte 0       2
                  bytes 1-8    how many records there are
                  bytes 9-40   sha256 over all bytes of the file before the end
                  bytes 41-44  CRC-32 over bytes 0 to 40

    of a record   byte 0       what it is, as its file says
                  bytes 1-4    length
                  the bytes

All numbers are big-endian. A record never spans blocks. A reader never makes more of a block than
`PACK_BLOCK_BYTES_MAX`, and refuses what says that it is more, so no file can make it use more memory than that. Records
have no names: nothing of a file can become a path. Nothing here does I/O.
"""

from __future__ import annotations

import enum
import hashlib
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from worldline.base import errors, grammar, limits
from worldline.codec import delta

MAGIC: Final = b"\x89WLP\r\n\x1a\n"
VERSION: Final = 1
_FILE: Final = struct.Struct(">8sHH")
_BLOCK: Final = struct.Struct(">BII")
_RECORD: Final = struct.Struct(">BI")
_END: Final = struct.Struct(">BQ32s")
_CRC: Final = struct.Struct(">I")
_IS_BLOCK, _IS_END = 1, 2
_PACKED_MAX: Final = limits.PACK_BLOCK_BYTES_MAX + 64 * limits.KIB  # what does not compress grows a little
RECORD_BYTES_MAX: Final = limits.PACK_BLOCK_BYTES_MAX - _RECORD.size

Read = Callable[[int], bytes]  # so many bytes of a file, or fewer at its end
Record = tuple[int, bytes]


class PackKind(enum.IntEnum):
    """What a file is. Numbers are stored and never reused."""

    WORLD = 1  # a world, `features/copies/world_file.py`
    KEYS = 2  # of a backup: keys of a universe
    BLOBS = 3  # of a backup: blobs
    INDEX = 4  # of a backup: which blobs are in a file
    MANIFEST = 5  # of a backup: what it consists of


class Packer:
    """Makes a file of records. What is returned is to be written, in order."""

    def __init__(self, kind: PackKind) -> None:
        self._waiting = [_FILE.pack(MAGIC, VERSION, kind)]
        self._records: list[bytes] = []
        self._size = 0
        self._sum = hashlib.sha256()
        self.count = 0
        self.written = 0  # bytes that were returned

    def add(self, tag: int, data: bytes) -> bytes:
        if len(data) > RECORD_BYTES_MAX:
            raise errors.TooLarge("a record of a pack file", size=len(data), limit=RECORD_BYTES_MAX)
        # A record never spans blocks, so a block ends before one that has no room in it.
        if self._records and self._size + len(data) + _RECORD.size > limits.PACK_BLOCK_BYTES_MAX:
            self._end_block()
        self._records += (_RECORD.pack(tag, len(data)), data)
        self._size += _RECORD.size + len(data)
        self.count += 1
        if self._size >= limits.PACK_BLOCK_BYTES:
            self._end_block()
        return self._take()

    def finish(self) -> bytes:
        """The rest of the file. Nothing is added afterwards."""
        if self._records:
            self._end_block()
        # Taken first: the sum covers all bytes before the end.
        rest = self._take()
        end = _END.pack(_IS_END, self.count, self._sum.digest())
        end += _CRC.pack(zlib.crc32(end))
        self.written += len(end)
        return rest + end

    def _end_block(self) -> None:
        body = b"".join(self._records)
        packed = delta.pack(body)
        head = _BLOCK.pack(_IS_BLOCK, len(packed), len(body))
        self._waiting += (head, _CRC.pack(zlib.crc32(packed, zlib.crc32(head))), packed)
        self._records, self._size = [], 0

    def _take(self) -> bytes:
        data = b"".join(self._waiting)
        self._waiting = []
        self._sum.update(data)
        self.written += len(data)
        return data


class PlacedRecord(NamedTuple):
    """A record, and where it stands: where its block begins in the file, and where it begins in the block."""

    block: int
    start: int
    tag: int
    data: bytes


class PackReader:
    """A file that is read from its beginning to its end."""

    def __init__(self, kind: PackKind, read: Read) -> None:
        self._kind = kind
        self._read = read
        self.digest = b""  # over all bytes before its end, once that was reached

    def placed(self) -> Iterator[PlacedRecord]:
        """All records, in order. `DecodeError` at the first thing that is wrong: what was given before that is checked,
        but only a file that is read to its end is whole.
        """
        read = self._read
        head = read(_FILE.size)
        _check_head(head, self._kind)
        total = hashlib.sha256(head)
        count, place = 0, len(head)
        while True:
            what = _exactly(read, 1)
            if what[0] == _IS_END:
                break
            if what[0] != _IS_BLOCK:
                raise errors.DecodeError(f"neither a block nor the end of the file follows record {count}")
            body, raw = _block(read, what, count)
            total.update(raw)
            for start, tag, data in _records(body):
                count += 1
                yield PlacedRecord(place, start, tag, data)
            place += len(raw)
        _check_end(read, what, count, total.digest())
        self.digest = total.digest()  # only a file that was read to its end has one


def records(kind: PackKind, read: Read) -> Iterator[Record]:
    """All records of a file, as `PackReader` gives them."""
    return ((each.tag, each.data) for each in PackReader(kind, read).placed())


def block_at(read: Read) -> tuple[bytes, int]:
    """The body of the block that a file stands at, and how many bytes it takes there."""
    body, raw = _block(read, _exactly(read, 1), 0)
    return body, len(raw)


def records_from(body: bytes, start: int) -> Iterator[Record]:
    """The records of a block, from a place in it on."""
    return ((tag, data) for _, tag, data in _records(body, start))


def of_bytes(kind: PackKind, data: bytes) -> Iterator[Record]:
    """The same for a file that is in memory."""
    place = 0

    def read(count: int) -> bytes:
        nonlocal place
        place += count
        return data[place - count : place]

    return records(kind, read)


def _block(read: Read, what: bytes, count: int) -> tuple[bytes, bytes]:
    """The body of a block, and all of its bytes."""
    head = what + _exactly(read, _BLOCK.size - 1 + _CRC.size)
    _, packed, length = _BLOCK.unpack_from(head)
    # Checked before the body is read: what a file says of itself must not decide how much memory it takes.
    if packed > _PACKED_MAX or not 0 < length <= limits.PACK_BLOCK_BYTES_MAX:
        raise errors.DecodeError(f"a block of {length} bytes; the limit is {limits.PACK_BLOCK_BYTES_MAX}")
    body = _exactly(read, packed)
    # Before it is unpacked: damaged bytes do not get to the decompressor.
    if zlib.crc32(body, zlib.crc32(head[: _BLOCK.size])) != _CRC.unpack_from(head, _BLOCK.size)[0]:
        raise errors.DecodeError(f"the block behind record {count} has the wrong checksum: the file is damaged")
    return delta.unpack(body, length=length), head + body


def _check_head(head: bytes, kind: PackKind) -> None:
    if len(head) < _FILE.size or not head.startswith(MAGIC):
        raise errors.DecodeError("not a file of Worldline: it does not begin as one")
    _, version, found = _FILE.unpack(head)
    if version != VERSION:
        raise errors.DecodeError(f"a pack file of version {version}; this release reads version {VERSION}")
    if found != kind:
        raise errors.DecodeError(f"{grammar.an(_name(found))} file where {grammar.an(_name(kind))} file belongs")


def _records(body: bytes, start: int = 0) -> Iterator[tuple[int, int, bytes]]:
    """Where each begins, what it is, and its bytes."""
    place = start
    while place < len(body):
        if place + _RECORD.size > len(body):
            raise errors.DecodeError("a block ends inside a record")
        tag, length = _RECORD.unpack_from(body, place)
        place += _RECORD.size
        if place + length > len(body):
            raise errors.DecodeError("a block ends inside a record")
        yield place - _RECORD.size, tag, body[place : place + length]
        place += length


def _check_end(read: Read, what: bytes, count: int, total: bytes) -> None:
    end = what + _exactly(read, _END.size - 1)
    if _CRC.unpack(_exactly(read, _CRC.size))[0] != zlib.crc32(end):
        raise errors.DecodeError("the end of the file has the wrong checksum: the file is damaged")
    if _END.unpack(end)[1:] != (count, total):
        raise errors.DecodeError("the file does not end with what it had: records are missing, or are another file's")
    # What follows the end is covered by no checksum.
    if read(1):
        raise errors.DecodeError("bytes follow the end of the file")


def _exactly(read: Read, count: int) -> bytes:
    """So many bytes. Files may give fewer at once."""
    found = read(count)
    while len(found) < count:
        more = read(count - len(found))
        if not more:
            raise errors.DecodeError("the file is cut short: its end is missing")
        found += more
    return found


def _name(kind: int) -> str:
    return PackKind(kind).name.lower() if kind in PackKind.__members__.values() else f"kind {kind}"
