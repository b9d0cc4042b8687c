"""Reading and writing blobs of any size: the CAS records, the object store and a local cache put together.

`put` is safe to repeat and to race: equal bytes have equal addresses, each upload has a name of its own, and the first
record that is published wins; the loser's object is left for garbage collection. A blob that is there already is
raised to the present generation, so that a collection which began before cannot take it from under the caller.

`get` trusts nothing: bytes from the record, the cache or the object store are all checked against their address before
they are returned. It always asks for the record first, also when the bytes are cached: a cache may be shared between
universes, and what one of them holds must not be readable in another.
"""

from __future__ import annotations

from worldline.base import env as envs
from worldline.base import errors, limits, probes
from worldline.codec import digest
from worldline.keys import cas as keys
from worldline.layers import cas, universes
from worldline.model import blob, ids, payload
from worldline.store import kv, transact
from worldline.store.objects import cache as blob_cache
from worldline.store.objects import interface as objects

READS_MAX = 3  # of an object whose bytes are wrong, before it is called corrupt


class Blobs:
    """The blobs of one universe."""

    def __init__(
        self,
        engine: kv.Engine,
        store: objects.Objects,
        env: envs.Env,
        universe: ids.UniverseId,
        *,
        cache: blob_cache.BlobCache | None = None,
    ) -> None:
        self._engine = engine
        self._objects = store
        self._env = env
        self._universe = universe
        self._cache = cache

    async def put(self, data: bytes, *, expected: bytes | None = None) -> ids.Digest:
        """Durable and readable on return. A caller that names the address gets `DigestMismatch` if it is wrong."""
        if len(data) > limits.BLOB_BYTES_MAX:
            raise errors.TooLarge("blob", size=len(data), limit=limits.BLOB_BYTES_MAX)
        of = cas.address(data)
        if expected is not None and of != expected:
            raise errors.DigestMismatch("a blob being put", expected=expected, actual=of)
        uploaded: str | None = None

        async def attempt() -> transact.Done[None] | transact.Write[None]:
            nonlocal uploaded
            read = await self._engine.read(cas.get(self._universe, of), universes.get_generation(self._universe))
            raw, generation = read.value(0), universes.decode_generation(read.value(1))
            batch = kv.Batch()
            if raw is None:
                if uploaded is None and not cas.is_small(data):
                    uploaded = await self._upload(of, data)
                cas.publish(batch, self._universe, of, _record(data, generation, uploaded))
            elif not cas.touch(batch, self._universe, of, raw, generation=generation):
                return transact.Done(None)
            return transact.Write(batch, lambda _: None)

        await transact.run(self._engine, self._env, attempt)
        return of

    async def get(self, of: bytes) -> bytes:
        """The bytes behind an address, verified. `NotFound` if there are none, `Corrupt` if they are bad or gone."""
        record = await self._find(of)
        if self._cache is not None and record.object is not None:
            cached = await self._cache.get(of)  # verified there; an entry that is bad is dropped and not returned
            if cached is not None:
                return cached
        body = await self._fetch(of, record)
        if self._cache is not None and record.object is not None:
            await self._cache.put(of, body)
        return body

    async def has(self, of: bytes) -> bool:
        return (await self._engine.read(cas.get(self._universe, of))).value(0) is not None

    async def carry(self, data: bytes) -> payload.Payload:
        """`data` as a payload, put into the CAS first if it is too large to be carried along."""
        return cas.as_payload(data) if cas.is_small(data) else cas.as_payload(data, of=await self.put(data))

    async def load(self, carried: payload.Payload) -> bytes:
        """The bytes of a payload, wherever they are."""
        if carried.inline is not None:
            return carried.inline
        assert carried.ref is not None
        data = await self.get(carried.ref)
        if len(data) != carried.size:
            raise errors.DecodeError(
                f"blob {carried.ref.hex()} has {len(data)} bytes; its reference says {carried.size}"
            )
        return data

    async def _find(self, of: bytes) -> blob.Blob:
        return cas.decode(of, (await self._engine.read(cas.get(self._universe, of))).value(0))

    async def _upload(self, of: bytes, data: bytes) -> str:
        name = keys.object_name(self._universe, of, self._env.random_bytes(limits.ID_BYTES))
        await self._objects.put(name, data)
        return name

    async def _fetch(self, of: bytes, record: blob.Blob) -> bytes:
        """The blob's bytes, verified. One that was collected and put again meanwhile has another object."""
        damaged = 0
        for _ in range(limits.TRANSACT_ATTEMPTS_MAX):
            if record.object is None:
                assert record.inline is not None
                return record.inline  # verified by `_find`
            try:
                body = await self._objects.get(record.object)
            except errors.NotFound as error:
                found = await self._find(of)
                if found.object == record.object:
                    raise errors.Corrupt(f"blob {of.hex()}: its object {record.object} is gone") from error
                probes.hit("blobs.replaced-while-read")
                record = found
                continue
            try:
                digest.check(body, of, f"object {record.object}")
            except errors.DigestMismatch:
                damaged += 1
                if damaged == READS_MAX:
                    raise
                probes.hit("blobs.read-again")
                continue  # bytes are damaged on their way more often than at rest
            return body
        raise errors.Conflicted(f"blob {of.hex()} was replaced again and again while it was read")


def _record(data: bytes, generation: int, uploaded: str | None) -> blob.Blob:
    if uploaded is None:
        return blob.Blob(len(data), generation, inline=data)
    return blob.Blob(len(data), generation, object=uploaded)
