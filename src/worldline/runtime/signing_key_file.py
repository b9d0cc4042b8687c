"""Files with a key that signs, for anchors and receipts: JSON with hexadecimal digits, for their owner alone::

{"private": "8c1f...", "public": "03ab..."}
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from worldline.base import errors, limits, private_files
from worldline.codec import ed25519

KEY_FILE_BYTES_MAX = 4 * limits.KIB


class _KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    private: str
    public: str


def read(path: str | Path) -> bytes:
    """The private key in a file. `BadInput` if it is none, or damaged."""
    try:
        data = private_files.read_secret(Path(path), bytes_max=KEY_FILE_BYTES_MAX)
        found = msgspec.json.decode(data, type=_KeyFile)
        private = bytes.fromhex(found.private)
        public = ed25519.public_of(private).hex()  # `ValueError` if it has not 32 bytes
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise errors.BadInput(f"{path} is no signing key: `worldline anchor --new-key FILE` makes one") from None
    if public != found.public:
        raise errors.BadInput(f"{path} is damaged: its public key is another key's")
    return private


def write(path: Path, private: bytes) -> None:
    """Make a key file. `Exists` if there is one."""
    said = _KeyFile(private.hex(), ed25519.public_of(private).hex())
    private_files.write(path, msgspec.json.format(msgspec.json.encode(said), indent=2) + b"\n", replace=False)
