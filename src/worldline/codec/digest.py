"""Digests: sha256 of content, and of several parts that must not be confused with each other.

A content address is the plain sha256 of the bytes, so that any tool can check it. Everything else that is hashed (ids,
chains, state) goes through `hash_parts`, which gives every purpose a domain of its own and every part its length.
Written as text, a digest is 64 lower-case hexadecimal digits and nothing else, because names of objects are made of it.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from worldline.base import errors, limits

_HEX: Final = re.compile(f"[0-9a-f]{{{2 * limits.DIGEST_BYTES}}}")
LENGTH_BYTES: Final = 8
_SHORT_LENGTHS: Final = tuple(length.to_bytes(LENGTH_BYTES, "big") for length in range(256))  # nearly all there are


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def hash_parts(domain: bytes, *parts: bytes) -> bytes:
    """sha256 over domain and parts, each after its length in eight bytes: other parts never make the same input."""
    assert domain, "a purpose has a name"
    pieces = [_SHORT_LENGTHS[len(domain)], domain]
    for part in parts:
        length = len(part)
        pieces.append(_SHORT_LENGTHS[length] if length < 256 else length.to_bytes(LENGTH_BYTES, "big"))
        pieces.append(part)
    return hashlib.sha256(b"".join(pieces)).digest()


def counted(part: bytes) -> bytes:
    """A part as `hash_parts` takes it, the domain too: sha256 of several of these, joined, is the same digest."""
    length = len(part)
    return (_SHORT_LENGTHS[length] if length < 256 else length.to_bytes(LENGTH_BYTES, "big")) + part


def to_hex(digest: bytes) -> str:
    assert len(digest) == limits.DIGEST_BYTES
    return digest.hex()


def from_hex(text: str) -> bytes:
    """The digest written as `text`; `DecodeError` for any other spelling, upper case too."""
    if _HEX.fullmatch(text) is None:
        raise errors.DecodeError(f"not a digest in hexadecimal: {text[:80]!r}")
    return bytes.fromhex(text)


def check(data: bytes, expected: bytes, what: str) -> None:
    """Raise `DigestMismatch` unless `expected` is the sha256 of `data`."""
    actual = sha256(data)
    if actual != expected:
        raise errors.DigestMismatch(what, expected=expected, actual=actual)
