"""The rows of a world's state, and what a step changes in them.

A world's state is a map of small rows. A row has a key, a *meaning* and a *placement*: the meaning is what the row
says, the placement is what depends on when and where that came about (steps, ordinals, times). The state digest is over
the meanings alone, so it is equal between engines, and between twins whose clocks differ; the chain digest covers both.
Both are over these logical bytes, never over stored ones: how a change is stored is the journal's business.

The keys of rows that are dropped together begin with the same bytes, their group: dropping a group is one change.

The changes of a step are in one order: dropped groups first, then rows, each by key. Groups are dropped before the rows
of the same step are written.

The digest itself is in `state_digest.py`.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

import msgspec

from worldline.base import limits

SHORT_BYTES_MAX: Final = 64  # of a meaning that is hashed with its key, and not by itself before
SLOT_BYTES_MIN: Final = 16  # of a payload; naming a shorter one takes as much as the payload
DELTA_BYTES_MIN: Final = 4 * limits.KIB  # a row that is not larger is stored whole
NO_SLOT: Final = (0, 0)


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What stands under a key."""

    meaning: bytes
    placement: bytes = b""


class Change(msgspec.Struct, frozen=True, gc=False):
    """One changed row, or a row or group that is gone (`row` is None)."""

    key: bytes
    row: Row | None
    digest: bytes = b""  # the sha256 of the row's meaning, if that is not short
    is_group: bool = False  # every row whose key begins with `key` is gone
    slot: tuple[int, int] = NO_SLOT  # where in the meaning a payload stands that an entry of the step may have, too
    base: bytes | None = None  # the row's meaning before this step, if it is known: a large row travels as a delta


def put(key: bytes, row: Row, *, slot: tuple[int, int] = NO_SLOT, base: bytes | None = None) -> Change:
    meaning = row.meaning
    return Change(key, row, sha256(meaning).digest() if len(meaning) > SHORT_BYTES_MAX else b"", False, slot, base)


def gone(key: bytes) -> Change:
    return Change(key, None)


def drop(group: bytes) -> Change:
    return Change(group, None, is_group=True)
