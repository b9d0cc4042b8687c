"""The rows of a world's state, and what a step changes in them.

A world's state is a map of small rows. A row has a key, a *meaning* and a *placement*: the meaning is what the row
says, the placement is what depends on when and where that came about (steps, ordinals, times). The state digest is over
the meanings alone, so it is equal between engines, and between twins whose clocks differ; the chain digest covers both.
Both are over these logical bytes, never over stored ones: how a change is stored is the journal's business.

The keys of rows that are dropped together begin with the same bytes, their group: dropping a group is one change.

The changes of a step are in one order: dropped groups first, then rows, each by key. Groups are dropped before the rows
of the same step are written.

What is hashed is one canonical list of all changes, because one call encodes it: a key, then the meaning if that is
short, else 2 and its sha256; 0 if the row is gone, 1 if the group is. The chain's digest is over the same list and, if
some row has a placement, one of all placements.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec

from worldline.base import errors, limits
from worldline.codec import digest
from worldline.codec.canonical import decode_flat, encode_flat

SHORT_BYTES_MAX: Final = 64  # of a meaning that is hashed with its key, and not by itself before
SLOT_BYTES_MIN: Final = 16  # of a payload; naming a shorter one takes as much as the payload
DELTA_BYTES_MIN: Final = 4 * limits.KIB  # a row that is not larger is stored whole
PLAIN_LENGTH_BYTES: Final = 4  # of the length of keys and meanings, before these
NO_SLOT: Final = (0, 0)
_GONE: Final = 0
_GROUP: Final = 1
_LONG: Final = 2
_STATE: Final = digest.counted(b"state")
_CHANGES: Final = digest.counted(b"changes")


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


def changes_digest(changes: Sequence[Change]) -> bytes:
    """The second of `digests`: what the chain covers."""
    return digests(b"", changes)[1]


def digests(previous: bytes, changes: Sequence[Change]) -> tuple[bytes, bytes, bytes]:
    """Of the state, which is H(previous, what changed), the meanings without placements: a step that changes nothing
    keeps it. What the chain covers of the changes: keys, meanings and placements. And, if every meaning is short, what
    both are over (`plain`): there is no better form to store.
    """
    if not changes:
        return previous, NO_CHANGES, b""
    flat: list[Any] = []
    placements: list[bytes] = []
    placed, is_plain = b"", True
    for change in changes:
        flat.append(change.key)
        row = change.row
        if row is None:
            flat.append(_GROUP if change.is_group else _GONE)
            continue
        if change.digest:
            flat += (_LONG, change.digest)
            # Only the digest of a long meaning is in these bytes: no reader could take them for the row.
            is_plain = False
        else:
            flat.append(row.meaning)
        placements.append(row.placement)
        # One placement is enough for the list of all: its places count from the first row.
        placed = placed or row.placement
    meant = encode_flat(flat)
    if placed:
        placed = encode_flat(placements)
    plain = len(meant).to_bytes(PLAIN_LENGTH_BYTES, "big") + meant + placed if is_plain else b""
    return sha256(_STATE + previous + meant).digest(), sha256(_CHANGES + meant + placed).digest(), plain


def plain(data: bytes) -> list[Change]:
    """The changes that `digests` gives as plain bytes. `DecodeError` for any others."""
    end = PLAIN_LENGTH_BYTES + int.from_bytes(data[:PLAIN_LENGTH_BYTES], "big")
    if end > len(data):
        raise errors.DecodeError("plain changes: cut off")
    placed = data[end:]
    flat: Any = decode_flat(data[PLAIN_LENGTH_BYTES:end])
    placements: Any = decode_flat(placed) if placed else []
    if type(flat) is not list or type(placements) is not list or not flat or len(flat) % 2:
        raise errors.DecodeError("plain changes: not a list of keys and meanings, and one of placements")
    found: list[Change] = []
    count = 0
    for key, meaning in zip(flat[::2], flat[1::2], strict=True):
        if type(key) is bytes and type(meaning) is bytes and len(meaning) <= SHORT_BYTES_MAX:
            placement = placements[count] if count < len(placements) else b""
            count += 1
            if type(placement) is not bytes:
                raise errors.DecodeError("plain changes: a placement is bytes")
            found.append(Change(key, Row(meaning, placement)))
        elif type(key) is bytes and type(meaning) is int and meaning in (_GONE, _GROUP):
            found.append(Change(key, None, is_group=meaning == _GROUP))
        else:
            raise errors.DecodeError(f"plain changes: number {len(found)} is none")
    # A change has one form: a list of empty placements is never written, so it is refused.
    if placements and (count != len(placements) or not any(placements)):
        raise errors.DecodeError(f"plain changes: {len(placements)} placements of {count} rows")
    return found


NO_CHANGES: Final = sha256(_CHANGES).digest()
