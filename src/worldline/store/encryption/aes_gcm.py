"""AES-256 in Galois/Counter mode, by the package `cryptography`: the only file that knows it.

A data key becomes two keys: one encrypts, one makes nonces. The nonce of a value is the beginning of an HMAC-SHA-256
over its place and its bytes. So the same value at the same place is always sealed to the same bytes, which is what lets
a batch expect a value whichever process has sealed it; and two different values have the same nonce no more often than
with random ones: less than once in 2^32 for the 2^32 values that one key may seal. An attacker that sees a store twice
learns which values have not changed, and no more.

Keys are wrapped by the same cipher under a master key, with a random nonce.
"""

from __future__ import annotations

import hmac
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from worldline.base import errors

NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
OVERHEAD_BYTES: Final = NONCE_BYTES + TAG_BYTES
_WHOLE_BYTES_MAX: Final = 1 << 20  # more is hashed without a copy


class AesCipher:
    """A data key at work."""

    __slots__ = ("_aes", "_nonces")

    def __init__(self, key: bytes) -> None:
        self._aes = AESGCM(hmac.digest(key, b"worldline: values", "sha256"))
        self._nonces = hmac.digest(key, b"worldline: nonces", "sha256")

    def seal(self, place: bytes, data: bytes) -> bytes:
        nonce = self._nonce(place, data)
        return nonce + self._aes.encrypt(nonce, data, place)

    def open(self, place: bytes, sealed: bytes) -> bytes:
        return _open(self._aes, place, sealed)

    def _nonce(self, place: bytes, data: bytes) -> bytes:
        bound = len(place).to_bytes(4, "big") + place
        if len(data) <= _WHOLE_BYTES_MAX:
            return hmac.digest(self._nonces, bound + data, "sha256")[:NONCE_BYTES]
        made = hmac.new(self._nonces, bound, "sha256")
        made.update(data)
        return made.digest()[:NONCE_BYTES]


def wrap(master: bytes, place: bytes, key: bytes, *, nonce: bytes) -> bytes:
    """A data key, sealed under a master key. `nonce`: random, for this once."""
    assert len(nonce) == NONCE_BYTES
    return nonce + _wrapping(master).encrypt(nonce, key, place)


def unwrap(master: bytes, place: bytes, wrapped: bytes) -> bytes:
    return _open(_wrapping(master), place, wrapped)


def _wrapping(master: bytes) -> AESGCM:
    """A master key has other uses (`AesGcm.check`), each by a key of its own."""
    return AESGCM(hmac.digest(master, b"worldline: wraps", "sha256"))


def _open(aes: AESGCM, place: bytes, sealed: bytes) -> bytes:
    if len(sealed) < OVERHEAD_BYTES:
        raise errors.DecodeError(f"sealed bytes are truncated to {len(sealed)}")
    try:
        return aes.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], place)
    except InvalidTag:
        raise errors.DecodeError("sealed bytes were changed, moved, or sealed with another key") from None
