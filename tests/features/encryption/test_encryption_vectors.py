"""Golden bytes of what encryption stores, and what is refused in their place."""

from __future__ import annotations

import pytest

import worldline as wl
from worldline.base import errors
from worldline.features.encryption import aes_gcm, envelope

KEY = bytes(range(32))
PLACE = envelope.place(envelope.PUT, b"key")
SEALED = "6ea12727534253b2e812fda2a98cd0fa7b4c928536c462f9c28c563b71eede996b"
WRAPPED = (
    "0000000000000000000000000e3bb724251f9edc6628e3d393db51be1627187d"
    "24bc0ec1cc56bcb24c00e6cd6bed2cff9cc3d8663fae795fa3996838"
)
CHECK = "3fd08ed50ffece48ce012db839ea832f"


def test_golden() -> None:
    assert PLACE.hex() == "e1006b6579"
    assert aes_gcm.AesCipher(KEY).seal(PLACE, b"value").hex() == SEALED
    assert aes_gcm.wrap(KEY, b"place", bytes(32), nonce=bytes(12)).hex() == WRAPPED
    assert wl.ops.AesGcm(keys={"a": KEY}, current="a").check("a").hex() == CHECK


@pytest.mark.parametrize("size", [0, 1, 65_536, (1 << 20) + 1])
def test_what_was_sealed_is_opened(size: int) -> None:
    cipher, data = aes_gcm.AesCipher(KEY), b"x" * size
    sealed = cipher.seal(PLACE, data)
    assert len(sealed) == size + aes_gcm.OVERHEAD_BYTES
    assert cipher.open(PLACE, sealed) == data
    assert cipher.seal(PLACE, data) == sealed, "the same each time"
    assert cipher.seal(envelope.place(envelope.PUT, b"other"), data)[:12] != sealed[:12]
    assert aes_gcm.unwrap(KEY, b"p", aes_gcm.wrap(KEY, b"p", data, nonce=bytes(12))) == data


def test_everything_else_is_refused() -> None:
    cipher = aes_gcm.AesCipher(KEY)
    sealed = cipher.seal(PLACE, b"value")
    damaged = [sealed[:size] for size in range(len(sealed))] + [sealed + b"x"]
    damaged += [sealed[:n] + bytes([sealed[n] ^ 1]) + sealed[n + 1 :] for n in range(len(sealed))]
    for each in damaged:
        with pytest.raises(errors.DecodeError):
            cipher.open(PLACE, each)
    with pytest.raises(errors.DecodeError):
        cipher.open(PLACE + b"x", sealed)
    with pytest.raises(errors.DecodeError):
        aes_gcm.AesCipher(KEY[::-1]).open(PLACE, sealed)


@pytest.mark.parametrize("stored", [b"", b"\xe1", b"\xe2\x00abc", b"\xb1\x01abc", b"\xe1\x04abc"])
def test_an_envelope_of_another_kind_is_refused(stored: bytes) -> None:
    with pytest.raises(errors.DecodeError):
        envelope.take_apart(b"key", stored)
