"""Opening a store with a codec: refusing one that is encoded otherwise, and what its values are sealed with.

`SEALING` is what the core asks when it opens a store (`runtime/store_wrapping.py`).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from worldline.base import env as envs
from worldline.base import errors
from worldline.features.encryption import (
    aes_gcm,
    key_ring,
    master_key_batches,
    sealed_engine,
    sealed_objects,
    user_codec,
)
from worldline.features.encryption.cipher_interface import Cipher, CipherVault, Codec, CodecContext
from worldline.features.encryption.master_key_keyspace import Encryption, MasterKey
from worldline.features.encryption.master_keys import AesGcm
from worldline.runtime.store_wrapping import StoreCodec
from worldline.store import kv
from worldline.store.objects import objects_interface

AnyCodec = AesGcm | Codec

_NOWHERE = CodecContext(b"", b"", b"")


class StoreMarker(msgspec.Struct, frozen=True):
    """The marker of a store that is encoded so; of a plain one without."""

    encoded: Encryption | None

    def get(self) -> kv.Get:
        return master_key_batches.get()

    def check(self, raw: bytes | None) -> None:
        """Refuse a store that is encoded otherwise."""
        master_key_batches.check(raw, "" if self.encoded is None else self.encoded.codec)

    def create(self, batch: kv.Batch) -> None:
        if self.encoded is not None:
            master_key_batches.create(batch, self.encoded)


class SealedStore(msgspec.Struct, frozen=True):
    """An opened store whose values a vault seals."""

    vault: CipherVault

    def wrap_engine(self, bare: kv.Engine) -> kv.Engine:
        return sealed_engine.SealedEngine(bare, self.vault)

    def wrap_objects(self, bare: objects_interface.Objects, engine: kv.Engine) -> objects_interface.Objects:
        return sealed_objects.SealedObjects(bare, engine, self.vault)

    def cache_cipher(self) -> Cipher:
        return self.vault.cache_cipher()


class SealStores:
    """What encodes stores by the codecs that users give."""

    def marker(self, codec: StoreCodec | None) -> StoreMarker:
        return StoreMarker(None if codec is None else encoded(known(codec)))

    async def wrapping(self, engine: kv.Engine, env: envs.Env, codec: StoreCodec) -> SealedStore:
        return SealedStore(await vault(engine, env, known(codec)))

    def read_codec(self, path: Path) -> AesGcm:
        return AesGcm.from_file(path)


SEALING = SealStores()


def known(codec: StoreCodec) -> AnyCodec:
    """A codec as it was given. `BadInput` if it is none."""
    return codec if isinstance(codec, AesGcm) else user_codec.check(codec)


def encoded(codec: AnyCodec) -> Encryption:
    """What a new store says of itself."""
    if isinstance(codec, AesGcm):
        return Encryption(codec.name, 0, [MasterKey(codec.current, codec.check(codec.current))])
    return Encryption(codec.name, 0, [], user_codec.encode(codec, user_codec.PROBE, _NOWHERE))


async def vault(engine: kv.Engine, env: envs.Env, codec: AnyCodec) -> CipherVault:
    """What seals and opens the values of a store, which has a marker of this codec."""
    if isinstance(codec, AesGcm):
        # Before the store is read: a missing package is the first thing to say.
        aes_gcm.load()
        ring = key_ring.KeyRing(engine, env, codec)
        await ring.start()
        return ring
    found = master_key_batches.decode((await engine.read(master_key_batches.get())).value(0))
    assert found is not None, "opening has checked it"
    try:
        same = user_codec.decode(codec, found.probe, _NOWHERE) == user_codec.PROBE
    # Another codec of this name may raise, or return other bytes: both mean the same.
    except (errors.DecodeError, errors.CodecFailed):
        same = False
    if not same:
        raise errors.CodecMismatch(f"the codec {codec.name!r} does not decode what this store was encoded with")
    return user_codec.CodecVault(codec)
