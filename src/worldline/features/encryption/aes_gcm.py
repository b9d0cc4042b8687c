"""AES-256 in Galois/Counter mode, by the package `cryptography`, which only this file and `codec/ed25519.py` know.

A data key becomes two keys: one encrypts, one makes nonces. The nonce of a value is the beginning of an HMAC-SHA-256
over its place and its bytes. So the same value at the same place is always sealed to the same bytes, which is what lets
a batch expect a value whichever process has sealed it; and two different values have the same nonce no more often than
with random ones: less than once in 2^32 for the 2^32 values that one key may seal. An attacker that sees a store twice
learns which values have not changed, and no more.

Keys are wrapped by the same cipher under a master key, with a random nonce.

The package is an extra. It is loaded by the first key, so that processes without encrypted stores start without it.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from worldline.base import errors

NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
OVERHEAD_BYTES: Final = NONCE_BYTES + TAG_BYTES
_WHOLE_BYTES_MAX: Final = 1 << 20  # more is hashed without a copy


class _Aead(Protocol):
    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes) -> bytes: ...

    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes) -> bytes: ...


class _Driver(NamedTuple):
    aead: Callable[[bytes], _Aead]
    invalid: type[Exception]  # raised by `decrypt`


@functools.cache
def load() -> _Driver:
    """The package, or the error that says what to install."""
    try:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra, loaded when asked for
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - the same
    except ImportError as error:
        raise errors.BadUrl("AesGcm needs an extra: pip install 'worldline[encryption]'") from error
    return _Driver(AESGCM, InvalidTag)


class AesCipher:
    """A data key at work."""

    __slots__ = ("_aes", "_nonces")

    def __init__(self, key: bytes) -> None:
        self._aes = load().aead(hmac.digest(key, b"worldline: values", "sha256"))
        self._nonces = hmac.digest(key, b"worldline: nonces", "sha256")

    def seal(self, place: bytes, data: bytes) -> bytes:
        nonce = self._nonce(place, data)
        return nonce + self._aes.encrypt(nonce, data, place)

    def open(self, place: bytes, sealed: bytes) -> bytes:
        return _open(self._aes, place, sealed)

    def _nonce(self, place: bytes, data: bytes) -> bytes:
        # The length comes first: a place and bytes that are cut elsewhere must not get the same nonce.
        bound = len(place).to_bytes(4, "big") + place
        if len(data) <= _WHOLE_BYTES_MAX:
            return hmac.digest(self._nonces, bound + data, "sha256")[:NONCE_BYTES]
        made = hmac.new(self._nonces, bound, "sha256")
        made.update(data)
        return made.digest()[:NONCE_BYTES]


class RotatedCipher:
    """A data key at work that has followed others: it seals, and what these have sealed is opened, too. Which key that
    was, no byte says: the tag fits one alone.
    """

    __slots__ = ("_older", "current", "seal")

    def __init__(self, current: AesCipher, older: Sequence[AesCipher]) -> None:
        self.current = current
        self.seal = current.seal
        self._older = older

    def open(self, place: bytes, sealed: bytes) -> bytes:
        try:
            return self.current.open(place, sealed)
        # The error of the current key is shown in the end: older keys fail with any damaged value.
        except errors.DecodeError as error:
            for each in self._older:
                with contextlib.suppress(errors.DecodeError):
                    return each.open(place, sealed)
            raise error from None

    def seal_anew(self, place: bytes, sealed: bytes) -> bytes | None:
        """What an older key has sealed, sealed with the current one; None if it is."""
        with contextlib.suppress(errors.DecodeError):
            self.current.open(place, sealed)
            return None
        return self.seal(place, self.open(place, sealed))


def wrap(master: bytes, place: bytes, key: bytes, *, nonce: bytes) -> bytes:
    """A data key, sealed under a master key. `nonce`: random, for this once."""
    assert len(nonce) == NONCE_BYTES
    return nonce + _wrapping(master).encrypt(nonce, key, place)


def unwrap(master: bytes, place: bytes, wrapped: bytes) -> bytes:
    return _open(_wrapping(master), place, wrapped)


def _wrapping(master: bytes) -> _Aead:
    """A master key has other uses (`AesGcm.check`), each by a key of its own."""
    return load().aead(hmac.digest(master, b"worldline: wraps", "sha256"))


def _open(aes: _Aead, place: bytes, sealed: bytes) -> bytes:
    if len(sealed) < OVERHEAD_BYTES:
        raise errors.DecodeError(f"sealed bytes are truncated to {len(sealed)}")
    try:
        return aes.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], place)
    except load().invalid:
        raise errors.DecodeError("sealed bytes were changed, moved, or sealed with another key") from None
