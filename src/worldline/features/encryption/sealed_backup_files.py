"""Files of backups of an encrypted store, sealed as a whole: what is sealed in the store is nowhere else in plain.

A sealed file begins with `89 57 4C 53` and one byte, 1. Then comes the name of the codec behind its length in one byte,
with AES-GCM the id of the master key likewise, and the sealed bytes, which belong to the file's name. The key is made
from the master key, which must stay among the keys that are given for as long as the backup is to be read.
"""

from __future__ import annotations

import hmac

from worldline.base import errors
from worldline.features.encryption import aes_gcm, codec_opening, user_codec
from worldline.features.encryption.cipher_interface import Cipher, CodecContext
from worldline.features.encryption.master_keys import AesGcm
from worldline.runtime.store_wrapping import StoreCodec
from worldline.store.objects import objects_interface as objects

MAGIC = b"\x89WLS\x01"


class SealedFiles:
    """Objects around others. Without a codec, files that are sealed are refused, and plain ones go through; with one,
    the other way round.
    """

    def __init__(self, inner: objects.Objects, codec: StoreCodec | None) -> None:
        self._inner = inner
        self._codec = None if codec is None else codec_opening.known(codec)
        self.list = inner.list
        self.delete = inner.delete
        self.close = inner.close

    async def put(self, name: str, body: bytes) -> None:
        await self._inner.put(name, body if self._codec is None else _sealed(self._codec, name, body))

    async def get(self, name: str) -> bytes:
        found = await self._inner.get(name)
        is_sealed = found.startswith(MAGIC)
        if self._codec is None:
            if is_sealed:
                raise errors.CodecMismatch("the backup is encrypted: give the keys of its store (--keys FILE)")
            return found
        if not is_sealed:
            # What is plain was not written with these keys, so it is not believed.
            raise errors.DecodeError(f"the file {name} is not sealed, and the store that it is of is encrypted")
        return _opened(self._codec, name, found[len(MAGIC) :])


def _sealed(codec: codec_opening.AnyCodec, name: str, body: bytes) -> bytes:
    head = MAGIC + _counted(codec.name)
    if isinstance(codec, AesGcm):
        return head + _counted(codec.current) + _cipher(codec, codec.current).seal(name.encode(), body)
    return head + user_codec.encode(codec, body, CodecContext(b"", b"", name.encode()))


def _opened(codec: codec_opening.AnyCodec, name: str, data: bytes) -> bytes:
    found, rest = _take(data)
    if found != codec.name:
        raise errors.CodecMismatch(f"the backup is encoded with {found!r}, and not with {codec.name!r}")
    if isinstance(codec, AesGcm):
        key_id, sealed = _take(rest)
        return _cipher(codec, key_id).open(name.encode(), sealed)
    return user_codec.decode(codec, rest, CodecContext(b"", b"", name.encode()))


def _cipher(codec: AesGcm, key_id: str) -> Cipher:
    # A key for this use alone: files of backups and values of stores never share one.
    return aes_gcm.AesCipher(hmac.digest(codec.key(key_id), b"worldline: backups", "sha256"))


def _counted(text: str) -> bytes:
    data = text.encode()
    return bytes([len(data)]) + data


def _take(data: bytes) -> tuple[str, bytes]:
    end = 1 + (data[0] if data else 0)
    try:
        return data[1:end].decode(), data[end:]
    except UnicodeDecodeError as error:
        raise errors.DecodeError("a sealed file has a damaged beginning") from error
