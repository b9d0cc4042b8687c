"""Signatures by Ed25519 (RFC 8032), by the package `cryptography`: a public key is enough to check one.

The package is an extra, loaded by the first key, as in `features/encryption/aes_gcm.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from worldline.base import errors


class _Driver(NamedTuple):
    private: Callable[[bytes], Any]
    public: Callable[[bytes], Any]
    invalid: type[Exception]


@functools.cache
def _load() -> _Driver:
    try:
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - an extra, loaded when asked for
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 - the same
    except ImportError as error:
        raise errors.BadInput("signatures need an extra: pip install 'worldline[encryption]'") from error
    keys = ed25519.Ed25519PrivateKey, ed25519.Ed25519PublicKey
    return _Driver(keys[0].from_private_bytes, keys[1].from_public_bytes, InvalidSignature)


def public_of(private: bytes) -> bytes:
    """The public key of a private one, which is 32 random bytes."""
    found: bytes = _load().private(private).public_key().public_bytes_raw()
    return found


def sign(private: bytes, data: bytes) -> bytes:
    made: bytes = _load().private(private).sign(data)
    return made


def is_signed(public: bytes, data: bytes, signature: bytes) -> bool:
    """Whether this is the signature of these bytes by this key."""
    driver = _load()
    try:
        driver.public(public).verify(signature, data)
    # A key or a signature of another length raises a ValueError, and is a wrong one, too.
    except (driver.invalid, ValueError):
        return False
    return True
