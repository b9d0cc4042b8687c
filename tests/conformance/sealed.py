"""Vaults that seal the keys of the suite: all but those that cases count on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from worldline.base import errors
from worldline.features.encryption import aes_gcm
from worldline.features.encryption.cipher_interface import Cipher, KnownCipher

_COUNTERS = (b"value", b"k/count", b"m", b"moves", b"sum", b"total")


def _is_counter(key: bytes) -> bool:
    return key[:1] == b"c" or key in _COUNTERS


class FixedVault:
    """One key, known beforehand."""

    room_bytes = aes_gcm.OVERHEAD_BYTES
    repeats = True
    counted = b""

    def __init__(self) -> None:
        self._known = KnownCipher(aes_gcm.AesCipher(b"k" * 32), b"")

    def scope(self, key: bytes) -> bytes | None:
        return None if _is_counter(key) else b""

    def has_one_form(self, key: bytes) -> bool:
        return _is_counter(key)

    def count_key(self, scope: bytes) -> bytes:
        raise AssertionError(scope)

    def check_count(self, scope: bytes, count: int) -> None:
        pass

    def scope_of_name(self, name: str) -> bytes:
        return b""

    def is_destroyable(self, scope: bytes) -> bool:
        return False

    def known(self, scope: bytes, raw: bytes | None) -> KnownCipher:
        return self._known

    def cache_cipher(self) -> Cipher:
        return self._known.cipher

    async def make(self, scopes: Sequence[bytes]) -> None:
        assert not scopes


class RestlessVault(FixedVault):
    """Never seals to the same bytes twice, as a codec of a user's own may not."""

    room_bytes = 8
    repeats = False

    def __init__(self) -> None:
        self._known = KnownCipher(_Restless(), b"")


class _Restless:
    def __init__(self) -> None:
        self._numbers = itertools.count()

    def seal(self, place: bytes, data: bytes) -> bytes:
        return next(self._numbers).to_bytes(8, "big") + data[::-1]

    def open(self, place: bytes, sealed: bytes) -> bytes:
        if len(sealed) < 8:
            raise errors.DecodeError("short")
        return sealed[8:][::-1]
