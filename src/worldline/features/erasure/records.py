"""The ledger of erasures: what was erased, so that it can be erased again in a store that is restored from a backup.

An entry names universes, worlds, subjects and values by their ids. It holds nothing of what was erased; a subject's id
is the hash of the text that `of=` said.
"""

from __future__ import annotations

import enum

import msgspec

from worldline.base import limits


class ErasedKind(enum.IntEnum):
    """What was erased. Numbers are stored and never reused."""

    SUBJECT = 1  # all values of a subject, in a lineage
    VALUES = 2  # some of them
    KEY = 3  # of a world, by destroying it
    WORLD = 4  # deleted
    UNIVERSE = 5  # deleted


class LedgerEntry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One erasure. `world`: of values, the one that their lineage began with. `time_us`: the store's."""

    kind: ErasedKind
    universe: bytes
    world: bytes
    subject: bytes
    values: list[bytes]
    time_us: int

    def __post_init__(self) -> None:
        named = {
            ErasedKind.SUBJECT: (1, 1),
            ErasedKind.VALUES: (1, 1),
            ErasedKind.KEY: (1, 0),
            ErasedKind.WORLD: (1, 0),
            ErasedKind.UNIVERSE: (0, 0),
        }[self.kind]
        size = limits.ID_BYTES
        if len(self.universe) != size or (len(self.world), len(self.subject)) != (named[0] * size, named[1] * size):
            raise ValueError("an erasure names what it was of")
        if bool(self.values) != (self.kind is ErasedKind.VALUES) or any(len(each) != size for each in self.values):
            raise ValueError("an erasure of values names these")
        if self.time_us < 0:
            raise ValueError("times are not negative")
