"""Master keys, as users give them: `AesGcm`, the built-in codec, in a program or from a file.

A key file is JSON, with keys of 32 bytes in hexadecimal digits::

    {"current": "2026-11", "keys": {"2026-11": "8c1f...", "2026-05": "03ab..."}}

`current` names the key that wraps new data keys; the others are for what was written before. Keys are never part of a
message, a log line or a `repr`.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from worldline.base import errors, limits, private_files
from worldline.codec import outside_json

NAME = "aes-gcm"


class AesGcm:
    """Encrypt a store with AES-256-GCM: `wl.open(url, codec=wl.ops.AesGcm(keys={"2026-11": key}, current="2026-11"))`.

    `keys` are 32 bytes each, by ids of your choice. They wrap the keys that data is encrypted with: one for each world,
    and one for each universe. `current` wraps new ones; a store is read with whichever of `keys` it was written with.
    """

    name = NAME

    def __init__(self, *, keys: Mapping[str, bytes], current: str) -> None:
        given: list[tuple[Any, Any]] = list(keys.items())
        for key_id, key in given:
            if not isinstance(key_id, str) or not 0 < len(key_id.encode()) <= limits.KEY_ID_BYTES_MAX:
                raise errors.BadInput(
                    f"the id of a key is text of 1 to {limits.KEY_ID_BYTES_MAX} bytes, not {key_id!r}"
                )
            if not isinstance(key, bytes) or len(key) != limits.KEY_BYTES:
                raise errors.BadInput(
                    f"key {key_id!r} must be {limits.KEY_BYTES} bytes; make one with secrets.token_bytes"
                )
        if current not in keys:
            raise errors.BadInput(
                f"current={current!r} names none of the keys that were given: {', '.join(keys) or 'none'}"
            )
        self._keys = dict(keys)
        self.current = current

    @classmethod
    def from_file(cls, path: str | Path) -> AesGcm:
        """Read the keys of a file in the form that `worldline new-key` writes."""
        return read(Path(path)).codec()

    def __repr__(self) -> str:
        return f"AesGcm(keys={list(self._keys)}, current={self.current!r})"

    def key(self, key_id: str) -> bytes:
        """Return the key of this id. `KeyMissing` if it was not given."""
        found = self._keys.get(key_id)
        if found is None:
            raise errors.KeyMissing(key_id)
        return found

    def check(self, key_id: str) -> bytes:
        """Return what a store keeps of a key: it tells the key from every other, and is of no other use."""
        return hmac.digest(self.key(key_id), b"worldline: check", "sha256")[: limits.KEY_CHECK_BYTES]


class KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a key file says."""

    current: str
    keys: dict[str, str]

    def __repr__(self) -> str:
        return f"KeyFile(current={self.current!r}, keys={sorted(self.keys)})"

    def codec(self) -> AesGcm:
        return AesGcm(keys={key_id: _key(key_id, text) for key_id, text in self.keys.items()}, current=self.current)


def read(path: Path) -> KeyFile:
    # One byte more than the limit, so that a file that is too large is noticed.
    data = private_files.read_secret(path, bytes_max=limits.KEY_FILE_BYTES_MAX + 1)
    try:
        found: KeyFile = outside_json.decode(data, what=str(path), type=KeyFile, bytes_max=limits.KEY_FILE_BYTES_MAX)
    except errors.BadInput as error:
        looks = '{"current": "a", "keys": {"a": "64 hexadecimal digits"}}'
        # The cause has text of the file, which may be part of a key
        raise errors.BadInput(f"{path} is no key file: {_said(error)}; one looks like {looks}") from None
    return found


def _said(error: Exception) -> str:
    """What is wrong with a file, without any of its text: that may be part of a key."""
    return "it has other fields" if isinstance(error.__cause__, msgspec.ValidationError) else "it is not JSON"


def _key(key_id: str, text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise errors.BadInput(f"key {key_id!r} in the key file is not made of hexadecimal digits") from None  # as above
