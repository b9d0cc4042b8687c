"""A payload: canonical bytes carried along, or the address of those bytes in the CAS when they are large."""

from __future__ import annotations

import msgspec

from worldline.base import errors, limits


class Payload(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Exactly one of `inline` and `ref` is set: `ref` is the sha256 of `size` bytes in the universe's CAS."""

    inline: bytes | None = None
    ref: bytes | None = None
    size: int = 0

    def __post_init__(self) -> None:
        if (self.inline is None) == (self.ref is None):
            raise ValueError("a payload is either inline or a reference")
        if self.inline is not None and self.size != len(self.inline):
            raise ValueError("a payload's size is the number of its bytes")
        if self.size < 0:
            raise ValueError("a size is not negative")
        if self.ref is not None and len(self.ref) != limits.DIGEST_BYTES:
            raise ValueError("a payload's reference is a sha256")


def inline(data: bytes) -> Payload:
    if len(data) > limits.INLINE_BYTES_MAX:
        raise errors.TooLarge("inline payload", size=len(data), limit=limits.INLINE_BYTES_MAX)
    return Payload(inline=data, size=len(data))


def reference(digest: bytes, *, size: int) -> Payload:
    return Payload(ref=digest, size=size)


EMPTY = inline(b"\xf6")  # canonical null
