"""The vault of a user's own codec. There are no data keys: the codec is called for each value and body.

A codec cannot corrupt a store: what it returns is decoded at once and compared, before anything is written. What it
raises or returns wrongly is one `CodecFailed`; bytes that it does not decode when they are read are a `DecodeError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from worldline.base import errors, limits
from worldline.features.encryption import envelope
from worldline.features.encryption import keyspace as keys
from worldline.features.encryption.cipher_interface import Cipher, Codec, CodecContext, KnownCipher

PROBE = b"worldline"


class CodecVault:
    room_bytes = limits.SEALED_ROOM_BYTES_MAX - envelope.HEAD_BYTES
    repeats = False
    counted = b""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._known = KnownCipher(CodecCipher(codec), b"")

    def scope(self, key: bytes) -> bytes | None:
        return None if keys.sealing(key) is None else b""  # empty: sealed, by a cipher that has no record

    def has_one_form(self, key: bytes) -> bool:
        return keys.sealing(key) is None

    def count_key(self, scope: bytes) -> bytes:
        raise AssertionError(f"a codec has no key to be counted, nor a scope {scope.hex()}")

    def check_count(self, scope: bytes, count: int) -> None:
        del scope, count

    def scope_of_name(self, name: str) -> bytes:
        del name
        return b""

    def is_destroyable(self, scope: bytes) -> bool:
        del scope
        return False

    def known(self, scope: bytes, raw: bytes | None) -> KnownCipher:
        del scope, raw
        return self._known

    def cache_cipher(self) -> Cipher:
        return CacheCipher(self._codec)

    async def make(self, scopes: Sequence[bytes]) -> None:
        assert not scopes, "a codec has no records"


class CodecCipher:
    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def seal(self, place: bytes, data: bytes) -> bytes:
        return encode(self._codec, data, _context(place))

    def open(self, place: bytes, sealed: bytes) -> bytes:
        return decode(self._codec, sealed, _context(place))


class CacheCipher:
    """A blob in a cache has no universe, and its address for a place."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def seal(self, place: bytes, data: bytes) -> bytes:
        return encode(self._codec, data, CodecContext(b"", b"", place))

    def open(self, place: bytes, sealed: bytes) -> bytes:
        return decode(self._codec, sealed, CodecContext(b"", b"", place))


def check(codec: Any) -> Codec:
    """What was given as a codec, if it is one."""
    name = getattr(codec, "name", None)
    if not isinstance(name, str) or not 0 < len(name.encode()) <= limits.NAME_BYTES_MAX:
        raise errors.BadInput(
            f"codec= takes wl.ops.AesGcm(...) or an object with a name, encode and decode, not {codec!r}"
        )
    if not callable(getattr(codec, "encode", None)) or not callable(getattr(codec, "decode", None)):
        raise errors.BadInput(f"the codec {name!r} lacks encode(data, context) or decode(data, context)")
    found: Codec = codec
    return found


def encode(codec: Codec, data: bytes, context: CodecContext) -> bytes:
    """The bytes to be stored, which the codec decodes."""
    try:
        made: Any = codec.encode(data, context)
        # Decoded at once: what the codec cannot read back must not be written.
        again: Any = codec.decode(made, context) if isinstance(made, bytes) else None
    # The codec is code of the user, which may raise anything: none of it is an error of the store.
    except Exception as error:
        raise errors.CodecFailed(f"the codec {codec.name!r} raised {type(error).__name__}: {error}") from error
    if not isinstance(made, bytes):
        raise errors.CodecFailed(f"the codec {codec.name!r} encoded bytes as {type(made).__name__}, not as bytes")
    if again != data:
        raise errors.CodecFailed(f"the codec {codec.name!r} does not decode what it has encoded; nothing was written")
    most = len(data) + CodecVault.room_bytes
    if len(made) > most:
        raise errors.CodecFailed(f"the codec {codec.name!r} made {len(made)} bytes of {len(data)}; {most} is the limit")
    return made


def decode(codec: Codec, stored: bytes, context: CodecContext) -> bytes:
    try:
        data: Any = codec.decode(stored, context)
    except Exception as error:
        raise errors.DecodeError(
            f"the codec {codec.name!r} does not decode this: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(data, bytes):
        raise errors.CodecFailed(f"the codec {codec.name!r} decoded bytes as {type(data).__name__}, not as bytes")
    return data


def _context(place: bytes) -> CodecContext:
    form, where = place[1], place[envelope.HEAD_BYTES :]
    if form == envelope.OBJECT:
        return CodecContext(keys.whose_object(where.decode()), b"", where)
    universe, world = keys.whose(where)
    return CodecContext(universe, world, where)
