"""Personal values that are kept apart, and what is left of those that were erased."""

from __future__ import annotations

import msgspec

from worldline.base import limits
from worldline.codec import sealed_token


class PersonalRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A value, with the salt of its commitment."""

    salt: bytes
    data: bytes

    def __post_init__(self) -> None:
        if len(self.salt) != sealed_token.SALT_BYTES:
            raise ValueError("a salt has 32 bytes")


class New(msgspec.Struct, frozen=True, gc=False):
    """A value that is to be written, and where."""

    subject: bytes
    value: bytes
    kept: PersonalRecord


class Erasures(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How often values of a subject were erased, and when last. Nothing of them is here."""

    number: int
    time_us: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("erasures count from 0")


NONE = Erasures(0, 0)


class Erase(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a world is told of an erasure, and its ERASED entry says: whose values, and which; none named: all."""

    subject: bytes
    values: list[bytes]
    number: int

    def __post_init__(self) -> None:
        if any(len(each) != limits.ID_BYTES for each in (self.subject, *self.values)):
            raise ValueError("subjects and values have 16 bytes")
