"""A world as a file: a pack (`features/copies/pack_file.py`) whose records come in this order.

::

    WORLD     once, first: what the world is, its head, and who made its steps (`features/copies/records.py`)
    PIECE     the beginning of a blob over 1 MiB, piece by piece
    BLOB      a blob, or its last piece: its address is the sha256 of its bytes. It stands before what refers to it
    SNAPSHOT  a saved state that is kept, the earliest first; its nodes stand before it
    DROPPED   if entries are not kept for ever: which are gone, and the head that the chain continues from
    SEGMENT   a part of the journal, from there or the first height to the head without a gap; its body is the blob
              before it
    DEAD      a dead letter, as it is stored
    SEEN      an id that was seen
    UNREAD    an input that was not processed, in order
    SEALED    a personal value of the world's lineage, which its history refers to
    SUBJECT   whose personal values there are, and how often some of them were erased

The journal of a fork is whole: what stands in its parents' journals is here too, so it needs none of them. Open work is
no record: it follows from the state. Everything is as it is in the store (`docs/format.md`), so that digests, states
and proofs of an imported world are those of the exported one.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Iterator

import msgspec

from worldline.base import errors, limits
from worldline.features.copies import pack_file


class Tag(enum.IntEnum):
    """What a record of such a file is. Numbers are stored and never reused."""

    WORLD = 1
    PIECE = 2
    BLOB = 3
    SNAPSHOT = 4
    SEGMENT = 5
    DEAD = 6
    SEEN = 7
    UNREAD = 8
    DROPPED = 9
    SEALED = 10
    SUBJECT = 11


class Contents(msgspec.Struct, frozen=True):
    """What a world file has, as it is shown."""

    name: str
    program: str
    height: int
    step: int
    chain: str
    state: str
    blobs: int
    segments: int
    snapshots: int
    unread: int
    dead: int


# No value of a user, no node and no segment is larger, so nothing in a world file is.
WORLD_BLOB_BYTES_MAX = limits.CHUNKED_BYTES_MAX


def blob_records(data: bytes) -> Iterator[pack_file.Record]:
    """A blob, in pieces if it is large. Backups have the same records."""
    start = 0
    while len(data) - start > limits.PIECE_BYTES:
        yield Tag.PIECE, data[start : start + limits.PIECE_BYTES]
        start += limits.PIECE_BYTES
    yield Tag.BLOB, data[start:]


def addresses(records: Iterable[pack_file.Record]) -> Iterator[bytes]:
    """The addresses of blobs, and of nothing else, without putting large ones together."""
    total, size, is_open = hashlib.sha256(), 0, False
    for tag, data in records:
        total.update(data)
        size += len(data)
        # Refused before the rest is read: no store has such a blob.
        if size > limits.BLOB_BYTES_MAX:
            raise errors.DecodeError(f"a blob of more than {limits.BLOB_BYTES_MAX} bytes")
        is_open = tag == Tag.PIECE
        if tag == Tag.BLOB:
            # The digest is made piece by piece, so a large blob is never in memory as a whole.
            yield total.digest()
            total, size = hashlib.sha256(), 0
        elif not is_open:
            raise errors.DecodeError(f"a record {tag} among blobs")
    if is_open:
        raise errors.DecodeError("a blob is not all there: the file ends behind a piece of it")


def whole(
    records: Iterable[pack_file.Record], *, blob_bytes_max: int = limits.BLOB_BYTES_MAX
) -> Iterator[pack_file.Record]:
    """The records of a file, large blobs put together. `DecodeError` if they cannot be."""
    pieces: list[bytes] = []
    size = 0
    for tag, data in records:
        if tag == Tag.PIECE:
            size += len(data)
            if size > blob_bytes_max:
                raise errors.DecodeError(f"a blob of more than {blob_bytes_max} bytes")
            pieces.append(data)
            continue
        if pieces:
            if tag != Tag.BLOB:
                raise errors.DecodeError("a blob is not all there: another record follows a piece of it")
            data, pieces, size = b"".join([*pieces, data]), [], 0  # noqa: PLW2901 - the same blob, whole
        yield tag, data
    if pieces:
        raise errors.DecodeError("a blob is not all there: the file ends behind a piece of it")
