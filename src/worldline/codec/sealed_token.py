"""Sealed values: what stands in the place of a personal value, wherever it was written.

::

    magic (8), subject (16), value (16), commitment (32)

The value itself is kept apart (`keys/personal_records.py`) under the subject and the number of the value, with a salt
of 32 random bytes; the commitment is the hash of both. Without the salt it says nothing of the value, however short
that is and whatever is guessed. So a journal, its digests and its proofs are over tokens, and erasing a value touches
none of them.

A token has a fixed length and is never taken apart on its way: it is found in any stored bytes by its magic.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from worldline.base import errors, limits
from worldline.codec import digest

MAGIC: Final = b"\x00wl-seal"
GONE: Final = b"\x00wl-gone"  # never stored: a token that was found to be of an erased value, for people
SALT_BYTES: Final = 32
TOKEN_BYTES: Final = len(MAGIC) + 2 * limits.ID_BYTES + limits.DIGEST_BYTES

_SUBJECT = slice(len(MAGIC), len(MAGIC) + limits.ID_BYTES)
_VALUE = slice(_SUBJECT.stop, _SUBJECT.stop + limits.ID_BYTES)
# Behind the magic any byte may stand, a newline too.
_TOKEN: Final = re.compile(re.escape(MAGIC) + b".{%d}" % (TOKEN_BYTES - len(MAGIC)), re.DOTALL)


class Token(msgspec.Struct, frozen=True, gc=False):
    """`subject`: whose value it is, by the hash of the name. `value`: which of theirs."""

    subject: bytes
    value: bytes
    commitment: bytes

    def pack(self) -> bytes:
        return MAGIC + self.subject + self.value + self.commitment


def subject_of(name: str) -> bytes:
    """A subject by its name. The name itself is stored nowhere."""
    return digest.hash_parts(b"subject", name.encode())[: limits.ID_BYTES]


def seal(subject: bytes, value: bytes, *, salt: bytes, data: bytes) -> Token:
    assert len(salt) == SALT_BYTES
    return Token(subject, value, digest.hash_parts(b"sealed", salt, data))


def parse(data: bytes) -> Token:
    """`DecodeError` if these bytes are no token."""
    if len(data) != TOKEN_BYTES or not data.startswith(MAGIC):
        raise errors.DecodeError("not a sealed value")
    return Token(data[_SUBJECT], data[_VALUE], data[_VALUE.stop :])


def find(data: bytes) -> list[Token]:
    """Every token that stands in these bytes, each once, in their order."""
    # Nearly always the answer, and much quicker than the pattern.
    if MAGIC not in data:
        return []
    return [parse(each) for each in dict.fromkeys(_TOKEN.findall(data))]


def marked(data: bytes, gone: Iterable[Token]) -> bytes:
    """The same bytes with these tokens marked, so that they can be told from the others. The length stays."""
    for each in gone:
        data = data.replace(each.pack(), GONE + each.pack()[len(MAGIC) :])
    return data


def shown(data: bytes) -> str:
    """What a token says to people: `personal`, or `erased` if it is marked. Nothing if these bytes are none."""
    if len(data) != TOKEN_BYTES:
        return ""
    return "personal" if data.startswith(MAGIC) else "erased" if data.startswith(GONE) else ""


def check(token: Token, *, salt: bytes, data: bytes) -> None:
    """`DigestMismatch` unless this is the value that the token stands for."""
    actual = seal(token.subject, token.value, salt=salt, data=data).commitment
    if actual != token.commitment:
        raise errors.DigestMismatch("a sealed value", expected=token.commitment, actual=actual)
