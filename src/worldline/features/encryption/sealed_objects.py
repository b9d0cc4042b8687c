"""Objects whose bodies are sealed, each for its name.

Names stay as they are. The largest body is smaller by what sealing adds. The size of a listed object is that of its
body before it was sealed, where the cipher always adds the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from worldline.base import errors, limits
from worldline.features.encryption import envelope
from worldline.features.encryption.cipher_interface import Cipher, CipherVault, KnownCipher
from worldline.store import kv
from worldline.store.objects import objects_interface as objects

_THREAD_BYTES_MIN = 1 << 20  # a larger body is sealed in a thread: the event loop goes on


class SealedObjects:
    def __init__(self, inner: objects.Objects, engine: kv.Engine, vault: CipherVault) -> None:
        self.inner = inner
        self._engine = engine  # where the records of data keys are
        self._vault = vault
        self.delete = inner.delete
        self.close = inner.close

    async def put(self, name: str, body: bytes) -> None:
        objects.check_name(name)
        room = limits.BLOB_BYTES_MAX - envelope.HEAD_BYTES - self._vault.room_bytes
        if len(body) > room:
            raise errors.TooLarge("object", size=len(body), limit=room)
        cipher = await self._cipher(name, make=True)
        place = envelope.place(envelope.OBJECT, name.encode())
        sealed = await _beside(cipher.seal, place, body)
        await self.inner.put(name, envelope.head(envelope.OBJECT) + sealed)

    async def get(self, name: str) -> bytes:
        """`Corrupt` if the body was changed, or moved from another name."""
        stored = await self.inner.get(name)
        cipher = await self._cipher(name, make=False)
        form, place, sealed, _ = envelope.take_apart(name.encode(), stored)
        if form != envelope.OBJECT:
            raise errors.DecodeError(f"object {name} holds a sealed value, not a body")
        return await _beside(cipher.open, place, sealed)

    async def list(self, prefix: str, *, after: str = "", count_max: int = 1000) -> list[objects.ListedObject]:
        found = await self.inner.list(prefix, after=after, count_max=count_max)
        # What a user's codec adds differs from body to body, so the size before is not known.
        if not self._vault.repeats:
            return found
        added = envelope.HEAD_BYTES + self._vault.room_bytes
        return [msgspec.structs.replace(each, size=max(0, each.size - added)) for each in found]

    async def _cipher(self, name: str, *, make: bool) -> Cipher:
        scope = self._vault.scope_of_name(name)
        if not scope:
            return self._vault.known(scope, None).cipher
        raw = (await self._engine.read(kv.Get(scope))).value(0)
        # Read again after `make`: another process may have made the key first.
        if raw is None and make:
            await self._vault.make([scope])
            raw = (await self._engine.read(kv.Get(scope))).value(0)
        known: KnownCipher = self._vault.known(scope, raw)
        return known.cipher


async def _beside(work: Callable[[bytes, bytes], bytes], place: bytes, data: bytes) -> bytes:
    return work(place, data) if len(data) < _THREAD_BYTES_MIN else await asyncio.to_thread(work, place, data)
