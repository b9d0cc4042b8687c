"""Opening a store with a codec: refusing one that is encoded otherwise, and what its values are sealed with."""

from __future__ import annotations

from worldline.base import env as envs
from worldline.base import errors
from worldline.features.encryption import aes_gcm, key_ring, master_key_batches, user_codec
from worldline.features.encryption.cipher_interface import CipherVault, Codec, CodecContext
from worldline.features.encryption.master_key_keyspace import Encryption, MasterKey
from worldline.features.encryption.master_keys import AesGcm
from worldline.store import kv

AnyCodec = AesGcm | Codec

_NOWHERE = CodecContext(b"", b"", b"")


def marker(codec: AnyCodec) -> Encryption:
    """What a new store says of itself."""
    if isinstance(codec, AesGcm):
        return Encryption(codec.name, 0, [MasterKey(codec.current, codec.check(codec.current))])
    given = user_codec.check(codec)
    return Encryption(given.name, 0, [], user_codec.encode(given, user_codec.PROBE, _NOWHERE))


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
