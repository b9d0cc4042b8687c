"""The envelope around every stored value, and sequences of chunks inside one.

::

    byte 0      magic (high four bits) and format version (low four)
    byte 1      kind: the ordinal of what the body is, so that a value under the wrong key is noticed
    bytes 2-5   CRC-32 over bytes 0, 1 and the body, big-endian
    bytes 6-    body

The checksum finds what disks, cables and bugs do to bytes; it is no proof against an attacker (that is what
digests are for). `unwrap` raises nothing but `DecodeError`, and says which part is wrong.

`join` writes chunks one after the other, each after its length in four bytes. `take` reads so many of
them, and leaves what follows alone. How entries are grouped into values is the journal's business.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Final, NoReturn

from worldline.base import errors, limits

_MAGIC: Final = 0xB0
_VERSION: Final = 1
_FORMAT: Final = _MAGIC | _VERSION
_HEADER: Final = struct.Struct(">BBI")
_LENGTH: Final = struct.Struct(">I")
# The checksum of the first two bytes, from which the body's continues.
_CHECKSUM_STARTS: Final = tuple(zlib.crc32(bytes([_FORMAT, kind])) for kind in range(256))

SEALED_MAGIC: Final = 0xE0  # of what stands in a frame's place in an encrypted store; see `features/encryption`
OVERHEAD_BYTES: Final = _HEADER.size
CHUNK_OVERHEAD_BYTES: Final = _LENGTH.size
CHUNKS_BYTES_MAX: Final = limits.VALUE_BYTES_MAX - OVERHEAD_BYTES
assert limits.FRAME_BYTES_MAX <= CHUNKS_BYTES_MAX


class UnreadableBytes(bytes):
    """Stored bytes that are no frame, and the error that says why."""

    why: errors.Error


def plain(data: bytes) -> bytes:
    """Stored bytes as nothing but bytes, for a record that they become part of: an encrypted store gives subclasses,
    which have no canonical form. If they are `UnreadableBytes`, the error that says why.
    """
    if isinstance(data, UnreadableBytes):
        raise data.why
    return data if type(data) is bytes else bytes(data)


def wrap(kind: int, body: bytes) -> bytes:
    assert 0 <= kind < len(_CHECKSUM_STARTS)
    return _HEADER.pack(_FORMAT, kind, zlib.crc32(body, _CHECKSUM_STARTS[kind])) + body


def unwrap(kind: int, data: bytes, *, checked: bool = True) -> bytes:
    """The body of `data`, which must be an intact frame of this kind. Not `checked`: damage to the body passes, for a
    caller that looks for where it is.
    """
    assert 0 <= kind < len(_CHECKSUM_STARTS)
    if len(data) < OVERHEAD_BYTES:
        _refuse_short(data)
    found_format, found_kind, checksum = _HEADER.unpack_from(data)
    # Format and kind before the checksum that covers them: so the error says what is wrong.
    if found_format != _FORMAT:
        _refuse_format(found_format, data)
    if found_kind != kind:
        raise errors.DecodeError(f"a frame of kind {found_kind} where kind {kind} belongs")
    body = data[OVERHEAD_BYTES:]
    if checked and zlib.crc32(body, _CHECKSUM_STARTS[kind]) != checksum:
        raise errors.DecodeError(f"a frame of kind {kind} and {len(data)} bytes has the wrong checksum")
    return body


def kind_of(data: bytes) -> int | None:
    """The kind that a value says it is of, unchecked; None if it is too short to say so."""
    return data[1] if len(data) >= OVERHEAD_BYTES else None


def _refuse_short(data: bytes) -> NoReturn:
    if isinstance(data, UnreadableBytes):
        raise data.why
    raise errors.DecodeError(f"not a frame: truncated to {len(data)} bytes")


def _refuse_format(format_byte: int, data: bytes) -> NoReturn:
    if isinstance(data, UnreadableBytes):
        raise data.why
    if format_byte & 0xF0 == SEALED_MAGIC:
        raise errors.DecodeError("a sealed value: it was read without the keys of its store")
    if format_byte & 0xF0 != _MAGIC:
        raise errors.DecodeError(f"not a frame: magic {format_byte & 0xF0:#04x} in place of {_MAGIC:#04x}")
    raise errors.DecodeError(f"a frame of version {format_byte & 0x0F}; this release reads version {_VERSION}")


def join(chunks: Sequence[bytes], head: bytes = b"") -> bytes:
    """`head`: what stands before them."""
    pieces, pack = [head], _LENGTH.pack
    for each in chunks:
        pieces += (pack(len(each)), each)
    body = b"".join(pieces)
    if len(body) > CHUNKS_BYTES_MAX:
        raise errors.TooLarge("a sequence of chunks", size=len(body), limit=CHUNKS_BYTES_MAX)
    return body


def chunk(data: bytes) -> bytes:
    """One chunk of a sequence."""
    return _LENGTH.pack(len(data)) + data


def take(body: bytes, count: int, *, start: int) -> tuple[list[bytes], int]:
    """So many chunks from here on, and where they end. `DecodeError` if there are fewer."""
    size = len(body)
    chunks: list[bytes] = []
    position = start
    for index in range(count):
        start = position + CHUNK_OVERHEAD_BYTES
        if start > size:
            raise errors.DecodeError(f"chunks: length number {index} is truncated")
        position = start + _LENGTH.unpack_from(body, position)[0]
        if position > size:
            raise errors.DecodeError(f"chunks: number {index} is truncated")
        chunks.append(body[start:position])
    return chunks, position
