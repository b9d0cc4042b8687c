"""Keys that sign anchors, in files (`runtime/signing_key_file.py`); and checking signatures.

Keep a key file where the operators of the store cannot read it, or a person who can rewrite the store can sign another
history.
The public key is not secret: a person who checks anchors must have it from elsewhere than from the anchor.
"""

from __future__ import annotations

import hmac
from pathlib import Path

import msgspec

from worldline.base import env as envs
from worldline.base import errors
from worldline.codec import ed25519
from worldline.features.anchors import records as anchors
from worldline.features.anchors.records import Anchor
from worldline.runtime import signing_key_file


class SigningKey:
    """A key that signs anchors: `await world.anchor(sign=wl.ops.SigningKey.from_file("anchor.key"))`."""

    def __init__(self, private: bytes) -> None:
        if len(private) != anchors.KEY_BYTES:
            raise errors.BadInput(f"a signing key has {anchors.KEY_BYTES} bytes")
        self._private = private
        self.public = ed25519.public_of(private).hex()

    @classmethod
    def from_file(cls, path: str | Path) -> SigningKey:
        """Read the key of a file that `worldline anchor --new-key` has made."""
        return cls(signing_key_file.read(path))

    def __repr__(self) -> str:
        return f"SigningKey(public={self.public!r})"

    def sign(self, anchor: Anchor) -> Anchor:
        """Return the anchor with a signature by this key."""
        # The public key is part of what is signed, so a signature cannot be moved to another key.
        signature = ed25519.sign(self._private, anchors.signed_bytes(anchor, self.public))
        return msgspec.structs.replace(anchor, key=self.public, signature=signature.hex())

    def write(self, file: Path) -> None:
        """Make a key file, for its owner alone. `Exists` if there is one."""
        signing_key_file.write(file, self._private)


def new_key(env: envs.Env) -> SigningKey:
    return SigningKey(env.random_bytes(anchors.KEY_BYTES))


def check_signature(anchor: Anchor, key: str = "") -> None:
    """`BadAnchor` if it was not signed by its key; or, if `key` is given, by this public key, in hexadecimal digits."""
    if key and len(key) != 2 * anchors.KEY_BYTES:
        raise errors.BadInput(f"a public key has {2 * anchors.KEY_BYTES} hexadecimal digits")
    what = f"the anchor of {anchor.name!r} at height {anchor.height}"
    # Without a key to compare with, an anchor may be unsigned.
    if not anchor.is_signed:
        if key:
            raise errors.BadAnchor(f"{what} is not signed")
        return
    # The key that the caller trusts decides: any person can make a key, and sign an anchor with it.
    if key and not hmac.compare_digest(key.lower().encode(), anchor.key.encode()):
        raise errors.BadAnchor(f"{what} is signed by {anchor.key}, which is another key than {key}")
    data = anchors.signed_bytes(anchor, anchor.key)
    if not ed25519.is_signed(bytes.fromhex(anchor.key), data, bytes.fromhex(anchor.signature)):
        raise errors.BadAnchor(f"{what} is forged or damaged: the signature is not that of its key")
