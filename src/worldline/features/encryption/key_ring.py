"""The vault of `AesGcm`: data keys in the store, each wrapped by a master key that is not.

A data key is made, and durable, before the first value that is sealed with it. Records of data keys are read and
written around the encryption, by the engine below it.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

import msgspec

from worldline.base import env as envs
from worldline.base import errors, limits
from worldline.codec import printable
from worldline.features.encryption import aes_gcm, batches, master_key_batches
from worldline.features.encryption import keyspace as keys
from worldline.features.encryption.cipher_interface import Cipher, KnownCipher
from worldline.features.encryption.keyspace import DataKey
from worldline.features.encryption.master_key_keyspace import MasterKey
from worldline.features.encryption.master_keys import AesGcm
from worldline.store import kv, transact

log = printable.logger("worldline.encryption")


class KeyRing:
    room_bytes = aes_gcm.OVERHEAD_BYTES
    repeats = True
    counted = bytes(2)  # of a nonce, which is as good as random: one of 65,536 values

    def __init__(self, engine: kv.Engine, env: envs.Env, codec: AesGcm) -> None:
        self.engine = engine
        self.env = env
        self.codec = codec
        self.scope = keys.sealing
        self.has_one_form = keys.is_unstamped
        self.scope_of_name = keys.of_object
        self.count_key = keys.seals_key

    def is_destroyable(self, scope: bytes) -> bool:
        """All are: also the key of a universe may be followed by another."""
        del self, scope
        return True

    def known(self, scope: bytes, raw: bytes | None) -> KnownCipher:
        found = batches.checked(scope, raw)
        assert raw is not None
        current = aes_gcm.AesCipher(self._unwrap(scope, found.master, found.wrapped))
        if not found.older:
            return KnownCipher(current, raw)
        older = [aes_gcm.AesCipher(self._unwrap(scope, found.master, each)) for each in found.older]
        return KnownCipher(aes_gcm.RotatedCipher(current, older), raw)

    def check_count(self, scope: bytes, count: int) -> None:
        universe, world = keys.owner(scope)
        whose = f"universe {universe.hex()}" if world is None else f"world {world.hex()}"
        if count >= limits.SEALS_MAX:
            raise errors.KeyWorn(
                f"the data key of {whose} has sealed as many values as it may; type `worldline rotate-keys --data`"
            )
        if count >= limits.SEALS_LOW:
            log.warning(
                "the data key of %s has sealed half of the values that it may: type `worldline rotate-keys --data`",
                whose,
            )

    def cache_cipher(self) -> Cipher:
        """Made from the current master key: when that changes, the cache fills anew."""
        # A key for this use alone: files of a cache tell nothing about the keys of the store.
        return aes_gcm.AesCipher(hmac.digest(self.codec.key(self.codec.current), b"worldline: cache", "sha256"))

    async def make(self, scopes: Sequence[bytes]) -> None:
        for start in range(0, len(scopes), limits.DATA_KEYS_PAGE):
            page = scopes[start : start + limits.DATA_KEYS_PAGE]

            async def attempt(page: Sequence[bytes] = page) -> transact.NothingToWrite[None] | transact.Write[None]:
                read = await self.engine.read(master_key_batches.get(), *map(kv.Get, page))
                # Another process may have made some of them: a record that is there counts.
                missing = [scope for n, scope in enumerate(page, 1) if read.value(n) is None]
                if not missing:
                    return transact.NothingToWrite(None)
                marker, batch = self._marker(read.value(0)), kv.Batch()
                master_key_batches.use(batch, marker, self._current())
                for scope in missing:
                    made = self._wrapped(scope, self.env.random_bytes(limits.KEY_BYTES), made_us=read.time_us)
                    batches.make(batch, scope, made, marker=marker)
                return transact.Write(batch, lambda _: None)

            await transact.run(self.engine, self.env, attempt)

    async def start(self) -> None:
        """Refuse a store that these keys do not open, and take the current one into use."""

        async def attempt() -> transact.NothingToWrite[None] | transact.Write[None]:
            raw = self._marker((await self.engine.read(master_key_batches.get())).value(0))
            found = master_key_batches.decode(raw)
            assert found is not None
            # Every key in use is checked: with some of them missing, a read would fail later.
            for each in found.masters:
                if self.codec.check(each.id) != each.check:
                    raise errors.WrongKey(each.id)
            batch = kv.Batch()
            changed = master_key_batches.use(batch, raw, self._current())
            return transact.Write(batch, lambda _: None) if changed else transact.NothingToWrite(None)

        await transact.run(self.engine, self.env, attempt)

    def rewrapped(self, scope: bytes, data_key: DataKey) -> DataKey:
        """The same data key under the current master key."""
        made = self._wrapped(scope, self._unwrap(scope, data_key.master, data_key.wrapped), made_us=data_key.made_us)
        # Older keys are wrapped anew, too: they still open values, and the old master key is to be retired.
        older = [self._wrap(scope, self._unwrap(scope, data_key.master, each)) for each in data_key.older]
        return msgspec.structs.replace(made, older=older, rewriting=data_key.rewriting)

    def followed(self, scope: bytes, data_key: DataKey, *, made_us: int) -> DataKey:
        """Another data key, which follows this one."""
        if len(data_key.older) >= limits.OLDER_KEYS_MAX:
            raise errors.BadInput(
                f"the data key {scope.hex()} has followed {len(data_key.older)} others: no more is kept"
            )
        made = self._wrapped(scope, self.env.random_bytes(limits.KEY_BYTES), made_us=made_us)
        known = [data_key.wrapped, *data_key.older]
        older = [self._wrap(scope, self._unwrap(scope, data_key.master, each)) for each in known]
        return msgspec.structs.replace(made, older=older, rewriting=True)

    def _current(self) -> MasterKey:
        return MasterKey(self.codec.current, self.codec.check(self.codec.current))

    def _unwrap(self, scope: bytes, key_id: str, wrapped: bytes) -> bytes:
        master = self.codec.key(key_id)
        try:
            return aes_gcm.unwrap(master, scope, wrapped)
        except errors.DecodeError as error:
            raise errors.DecodeError(f"the data key {scope.hex()} is damaged: {error}") from error

    def _wrapped(self, scope: bytes, key: bytes, *, made_us: int) -> DataKey:
        return DataKey(self.codec.current, self._wrap(scope, key), made_us)

    def _wrap(self, scope: bytes, key: bytes) -> bytes:
        nonce = self.env.random_bytes(aes_gcm.NONCE_BYTES)
        return aes_gcm.wrap(self.codec.key(self.codec.current), scope, key, nonce=nonce)

    @staticmethod
    def _marker(raw: bytes | None) -> bytes:
        if raw is None:
            raise errors.StoreVersion("the encryption marker of this store is gone; restore it from a backup")
        return raw
