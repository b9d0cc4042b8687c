"""The digest of a world's state, and that of the changes of one step, which the chain covers.

What is hashed is one canonical list of all changes, because one call encodes it: a key, then the meaning if that is
short, else 2 and its sha256; 0 if the row is gone, 1 if the group is. The chain's digest is over the same list and, if
some row has a placement, one of all placements.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

from worldline.base import errors
from worldline.codec import digest
from worldline.codec.canonical import decode_flat, encode_flat
from worldline.model.change import SHORT_BYTES_MAX, Change, Row

PLAIN_LENGTH_BYTES: Final = 4  # of the length of keys and meanings, before these
_GONE: Final = 0
_GROUP: Final = 1
_LONG: Final = 2
_STATE: Final = digest.counted(b"state")
_CHANGES: Final = digest.counted(b"changes")
NO_CHANGES: Final = sha256(_CHANGES).digest()


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
