"""The interfaces of encryption: a codec, as users give one; a cipher, as values are sealed with it; and a vault, which
says which values are sealed and with which cipher.

A *place* is where a value or body belongs: a store's key, or an object's name. What was sealed for one place can be
opened for no other. A codec of the user's own sees places as a `CodecContext`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec


class CodecContext(msgspec.Struct, frozen=True):
    """What a codec is told of the bytes it is given: whose they are, and where they are stored.

    `universe` and `world` are ids of 16 bytes; `world` is empty for what the worlds of a universe share (large values,
    saved states, labels). `place` is the store's key or the object's name: the same bytes are decoded with the same
    place as they were encoded with. Inbox items have the place of their inbox.
    """

    universe: bytes
    world: bytes
    place: bytes


class Codec(Protocol):
    """What users' data is encoded with before it is stored. `name` is kept in the store, which no codec of another name
    opens. `decode(encode(data, context), context)` is `data`; encoded bytes are at most 1,000 longer. Both are called
    on the event loop, for large bodies in threads, and must not wait.
    """

    @property
    def name(self) -> str:
        """The name under which a store remembers it."""

    def encode(self, data: bytes, context: CodecContext) -> bytes:
        """Return the bytes to be stored in the place of these."""

    def decode(self, data: bytes, context: CodecContext) -> bytes:
        """Return what `encode` was given. Raise for bytes that it has not made."""


class Cipher(Protocol):
    """One key at work."""

    def seal(self, place: bytes, data: bytes) -> bytes: ...

    def open(self, place: bytes, sealed: bytes) -> bytes:
        """`DecodeError` if these bytes were not sealed for this place by this cipher."""


class KnownCipher(NamedTuple):
    """A cipher, and the record of its key as it was read; empty if the store has no record of it."""

    cipher: Cipher
    raw: bytes


class CipherVault(Protocol):
    """Which values are sealed, and with what. A scope is the store's key of the record of a data key."""

    @property
    def room_bytes(self) -> int:
        """By how much sealed bytes are longer, at most."""

    @property
    def repeats(self) -> bool:
        """The same bytes sealed twice for one place are the same."""

    @property
    def counted(self) -> bytes:
        """Sealed bytes that begin so stand for many: they are counted (`count_key`). Empty: none are."""

    def count_key(self, scope: bytes) -> bytes:
        """The counter of what was sealed in a scope."""

    def check_count(self, scope: bytes, count: int) -> None:
        """`KeyWorn` if the cipher of a scope has sealed as much as it may."""

    def scope(self, key: bytes) -> bytes | None:
        """The scope of the value under this key, or of keys that begin so. None: it is not sealed. Empty: it is, with a
        cipher that has no record.
        """

    def has_one_form(self, key: bytes) -> bool:
        """A value under this key is sealed to the same bytes each time, or not at all: no stamp is involved."""

    def scope_of_name(self, name: str) -> bytes:
        """The scope of an object."""

    def is_destroyable(self, scope: bytes) -> bool:
        """Whether a batch that writes in this scope must expect its record."""

    def known(self, scope: bytes, raw: bytes | None) -> KnownCipher:
        """The cipher of a scope whose record reads so. Raises `KeyDestroyed`, `KeyMissing`, `DecodeError`."""

    def cache_cipher(self) -> Cipher:
        """What seals blobs that are cached on disk."""

    async def make(self, scopes: Sequence[bytes]) -> None:
        """See to it that these scopes have records."""
