"""Blobs: bytes under their sha256, and the generation that garbage collection counts by."""

from __future__ import annotations

import msgspec


class Blob(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where the bytes behind a sha256 are: inline here, or in the object store under `object`."""

    size: int
    generation: int
    inline: bytes | None = None
    object: str | None = None

    def __post_init__(self) -> None:
        if (self.inline is None) == (self.object is None):
            raise ValueError("a blob is either inline or an object")
        if self.size < 0 or self.generation < 0:
            raise ValueError("a blob's size and generation are not negative")
        if self.inline is not None and len(self.inline) != self.size:
            raise ValueError("a blob's size is the number of its bytes")


class Generation(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The universe's garbage-collection generation: raised before each mark."""

    number: int
