"""Blobs: bytes under their sha256, and the generation that garbage collection counts by."""

from __future__ import annotations

import msgspec

from worldline.base import limits


class Blob(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where the bytes behind a sha256 are: inline here, in the object store under `object`, or in the store itself, in
    the chunks of the upload whose nonce is `chunks`.
    """

    size: int
    generation: int
    inline: bytes | None = None
    object: str | None = None
    chunks: bytes | None = None

    def __post_init__(self) -> None:
        if (self.inline, self.object, self.chunks).count(None) != 2:
            raise ValueError("a blob is inline, an object or in chunks")
        if self.size < 0 or self.generation < 0:
            raise ValueError("a blob's size and generation are not negative")
        if self.inline is not None and len(self.inline) != self.size:
            raise ValueError("a blob's size is the number of its bytes")
        if self.chunks is not None and len(self.chunks) != limits.ID_BYTES:
            raise ValueError(f"the nonce of an upload has {limits.ID_BYTES} bytes")


class Chunk(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A piece of a blob that is kept in the store itself."""

    data: bytes

    def __post_init__(self) -> None:
        if not 0 < len(self.data) <= limits.CHUNK_BYTES:
            raise ValueError(f"a chunk has 1 to {limits.CHUNK_BYTES} bytes")


class Upload(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A blob whose chunks are being written, over more than one batch."""

    size: int
    began_us: int  # by the store's clock


class Generation(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The universe's garbage-collection generation: raised before each mark."""

    number: int
