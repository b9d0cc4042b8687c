"""The envelope of a sealed value or body, and values that cannot be opened.

::

    byte 0      magic (high four bits) and format version (low four); unlike that of `codec/frame.py`
    byte 1      form: how the place was bound, below
    bytes 2-    what the cipher made of the value
    last 12     with form STAMPED: the stamp that the engine wrote behind it, as it is

The place that the cipher binds is the first two bytes and the store's key. The key of an appended value is not known
when it is sealed: its prefix is bound, so appended values of one prefix could be exchanged by a process that can write
the store.

A value that cannot be opened is not an error of the read that met it: the read may be about many worlds, and the damage
is that of one. It is an `Unopened`, which says what is wrong where a layer decodes it.
"""

from __future__ import annotations

from typing import Final, SupportsIndex

from worldline.base import errors, limits
from worldline.codec import frame

_FORMAT: Final = frame.SEALED_MAGIC | 1

PUT: Final = 0
STAMPED: Final = 1  # the stamp of an append of the batch follows
APPENDED: Final = 2  # the key ends in a stamp
OBJECT: Final = 3
_HEADS: Final = tuple(bytes([_FORMAT, form]) for form in range(4))
HEAD_BYTES: Final = 2


class OpenedValue(bytes):
    """A value as it was before it was sealed, with the stored bytes, for a batch that expects it."""

    stored: bytes

    @classmethod
    def of(cls, data: bytes, stored: bytes) -> OpenedValue:
        made = cls(data)
        made.stored = stored
        return made


class Unopened(frame.UnreadableBytes):
    """A value that cannot be opened, and the stored bytes. It has no bytes itself: stored ones that are plain where
    sealed ones belong must not be taken for a value.
    """

    stored: bytes

    @classmethod
    def of(cls, stored: bytes, why: errors.Error) -> Unopened:
        made = cls()
        made.stored, made.why = stored, why
        return made

    # A decoder that cuts off a beginning gets it back, with what is wrong.
    def __getitem__(self, at: SupportsIndex | slice) -> int | bytes:  # type: ignore[override]
        return self if isinstance(at, slice) else super().__getitem__(at)


def head(form: int) -> bytes:
    return _HEADS[form]


def place(form: int, key: bytes) -> bytes:
    """What the cipher binds a value under this key to. `key` of an append: its prefix."""
    return _HEADS[form] + key


def take_apart(key: bytes, stored: bytes) -> tuple[int, bytes, bytes, bytes]:
    """The form, the place, the sealed bytes, and what follows the value."""
    if len(stored) < HEAD_BYTES or stored[0] != _FORMAT or stored[1] > OBJECT:
        if stored[:1] and stored[0] & 0xF0 == frame.SEALED_MAGIC and stored[0] != _FORMAT:
            raise errors.DecodeError(f"a sealed value of version {stored[0] & 0x0F}; this release reads version 1")
        raise errors.DecodeError("a plain value where a sealed one belongs")
    form = stored[1]
    if form == STAMPED:
        # Too short for a stamp: nothing is left to open, which fails
        cut = max(HEAD_BYTES, len(stored) - limits.STAMP_BYTES)
        return form, place(form, key), stored[HEAD_BYTES:cut], stored[cut:]
    bound = key[: -limits.STAMP_BYTES] if form == APPENDED else key
    return form, place(form, bound), stored[HEAD_BYTES:], b""
