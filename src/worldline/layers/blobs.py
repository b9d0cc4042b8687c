"""Reading and writing blobs of any size: the CAS records, chunks, the object store and a local cache put together.

Where a body goes depends on its size and on what the store was opened with. Small ones are in their record. With an
object store, all others are objects; without one, those of up to `in_store_bytes_max` are chunks in the store itself.
The record says where a body is, so what was put in one way is read in any other.

`put` is safe to repeat and to race: equal bytes have equal addresses, each upload has a name of its own, and the first
record that is published wins. The loser's object is left for garbage collection; its chunks it deletes itself, and
chunks of a killed process are swept (`abandoned`). A blob that is there already is raised to the present generation.

A publisher of a reference reads the `generation` first, then puts the blob, or touches what is there (`touch_many`),
and expects the generation in the batch that refers to it: then no collection can take it
(`features/collection/batches.py`). The record of an object is published in the generation in which its upload began: a
collection deletes objects that were there before it began and have no record, so an upload that is overtaken by one
begins again.

`get` trusts nothing: bytes from the record, chunks, the cache or the object store are all checked against their address
before they are returned. It always asks for the record first, also when the bytes are cached: a cache may be shared
between universes, and what one of them holds must not be readable in another.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from worldline.base import env as envs
from worldline.base import errors, limits, probes
from worldline.codec import digest
from worldline.keys import age as age_keys
from worldline.keys import cas as keys
from worldline.layers import cas, chunks, universes
from worldline.model import blobs as blob
from worldline.model import ids, payload
from worldline.store import kv, paging, transact
from worldline.store.objects import cached_objects as blob_cache
from worldline.store.objects import objects_interface as objects

READS_MAX = 3  # of an object that is missing, or whose bytes are wrong, before it is called corrupt
MISSING_FIRST_MS, MISSING_MOST_MS = 50, 500  # the pauses between reads of one that is missing


Of = Callable[[ids.UniverseId], "Blobs"]  # the blobs of a universe, for what serves many


class BadBlob(errors.Corrupt):
    """One of many blobs cannot be read. `address`: which."""

    code = "bad_blob"

    def __init__(self, address: bytes, why: str) -> None:
        super().__init__(f"blob {address.hex()}: {why}")
        self.address = address
        self.why = why


class BlobReader(Protocol):
    """Blobs that can be read: of a universe, or of a file."""

    async def get(self, of: bytes, /) -> bytes: ...

    async def get_many(self, addresses: Sequence[bytes], /) -> dict[bytes, bytes]: ...


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
        in_store_bytes_max: int = 0,
    ) -> None:
        self._engine = engine
        self._objects = store
        self._env = env
        self._universe = universe
        self._cache = cache
        self._in_store_bytes_max = in_store_bytes_max  # 0: what is not small is an object

    @property
    def objects(self) -> objects.Objects:
        """Where large bodies are: of this universe, those in its folder."""
        return self._objects

    async def generation(self) -> universes.GenerationRecord:
        """To be read before what a batch refers to is put, and to be expected by that batch."""
        # Made here if it is missing, so that every batch of every publisher has bytes to expect.
        while (raw := (await self._engine.read(universes.get_generation(self._universe))).value(0)) is None:
            first = kv.Batch()
            universes.expect_generation(first, self._universe, None)
            await transact.applied(self._engine, self._env, first)
        return universes.GenerationRecord(self._universe, raw)

    async def put(self, data: bytes, *, expected: bytes | None = None) -> ids.Digest:
        """Durable and readable on return. A caller that names the address gets `DigestMismatch` if it is wrong."""
        if len(data) > limits.BLOB_BYTES_MAX:
            raise errors.TooLarge("blob", size=len(data), limit=limits.BLOB_BYTES_MAX)
        of = cas.address(data)
        if expected is not None and of != expected:
            raise errors.DigestMismatch("a blob being put", expected=expected, actual=of)
        putting = _Putting(of, data)
        try:
            published = await transact.run(self._engine, self._env, lambda: self._attempt(putting))
        # No record names the chunks that were written; now they need not wait for a sweep.
        except errors.Error:
            await self._give_up(putting)
            raise
        # Another writer was first, and its body is the one: no record will name these chunks.
        if not published:
            await self._give_up(putting)
        return of

    async def put_many(self, bodies: Sequence[bytes]) -> None:
        """The same for many, in few commits. They become readable in their order: what refers to others stands behind
        them.
        """
        for group in _groups(bodies):
            if cas.is_small(group[0]):
                of = [cas.address(data) for data in group]
                await transact.run(self._engine, self._env, functools.partial(self._attempt_many, of, group))
            else:
                await self.put(group[0])

    async def touch_many(self, addresses: Sequence[bytes]) -> None:
        """Raise blobs that were put before to the present generation. `NotFound` names one that is gone."""
        for start in range(0, len(addresses), limits.BLOBS_TOUCH_MAX):
            page = addresses[start : start + limits.BLOBS_TOUCH_MAX]
            await transact.run(self._engine, self._env, functools.partial(self._attempt_touch, page))

    async def _attempt_touch(self, addresses: Sequence[bytes]) -> transact.NothingToWrite[None] | transact.Write[None]:
        wanted = [cas.get(self._universe, of) for of in addresses]
        read = await self._engine.read(universes.get_generation(self._universe), *wanted)
        generation = universes.decode_generation(read.value(0))
        batch = kv.Batch()
        for index, of in enumerate(addresses, 1):
            raw = read.value(index)
            if raw is None:
                raise errors.NotFound(f"no blob {of.hex()} in this universe")
            cas.touch(batch, self._universe, of, raw, generation=generation)
        return transact.Write(batch, lambda _: None) if batch.puts else transact.NothingToWrite(None)

    async def get(self, of: bytes) -> bytes:
        """The bytes behind an address, verified. `NotFound` if there are none, `Corrupt` if they are bad or gone."""
        return await self._load(of, await self._find(of))

    async def get_many(self, addresses: Sequence[bytes]) -> dict[bytes, bytes]:
        """The same for many, in few reads. `BadBlob` says which of them cannot be read."""
        found: dict[bytes, bytes] = {}
        for start in range(0, len(addresses), limits.BLOBS_READ_MAX):
            page = addresses[start : start + limits.BLOBS_READ_MAX]
            read = await self._engine.read(*(cas.get(self._universe, of) for of in page))
            for index, of in enumerate(page):
                try:
                    record = cas.decode(of, read.value(index))
                    found[of] = record.inline if record.inline is not None else await self._load(of, record)
                except (errors.NotFound, errors.Corrupt) as error:
                    raise BadBlob(of, str(error)) from error
        return found

    async def _load(self, of: bytes, record: blob.Blob) -> bytes:
        # Only objects are cached: records and chunks are in the store itself.
        if self._cache is not None and record.object is not None:
            cached = await self._cache.get(of)  # verified there; an entry that is bad is dropped and not returned
            if cached is not None:
                return cached
        body = await self._fetch(of, record)
        if self._cache is not None and record.object is not None:
            # What `_fetch` has verified, and nothing else.
            await self._cache.put(of, body)
        return body

    async def has(self, of: bytes) -> bool:
        return (await self._engine.read(cas.get(self._universe, of))).value(0) is not None

    async def carry(self, data: bytes) -> payload.Payload:
        """`data` as a payload, put into the CAS first if it is too large to be carried along."""
        return cas.as_payload(data) if cas.is_small(data) else cas.as_payload(data, of=await self.put(data))

    async def load(self, carried: payload.Payload) -> bytes:
        """The bytes of a payload, wherever they are."""
        return await load(self, carried)

    async def _find(self, of: bytes) -> blob.Blob:
        return cas.decode(of, (await self._engine.read(cas.get(self._universe, of))).value(0))

    # --- Uploads that were abandoned ---------------------------------------------------------------------------

    async def abandoned(self, *, period_us: int, remove: bool, uploads_max: int = limits.SETTING_COUNT_MAX) -> int:
        """How many uploads began so long ago and are not published; with `remove`, they go.

        An upload that is still being written, and is that old, begins again. Looks at `uploads_max` at most.
        """
        count = looked = 0
        after = b""
        while looked < uploads_max:
            count_max = min(limits.UPLOADS_PAGE, uploads_max - looked)
            wanted = chunks.uploads_range(self._universe, after=after, count_max=count_max)
            read = await self._engine.read(wanted, kv.Get(age_keys.age_key(self._universe)))
            page, now = read.page(0), age_keys.decode(read.value(1))
            for upload in chunks.decode_uploads(self._universe, page):
                looked += 1
                after = upload.key
                if now.has_passed(period_us, since_us=upload.age_us):
                    # Counted only if this process removed it: another one may sweep at the same time.
                    count += not remove or await self._discard(upload)
            if not page.more:
                break
        return count

    # --- Putting ----------------------------------------------------------------------------------------------

    async def _attempt(self, putting: _Putting) -> transact.NothingToWrite[bool] | transact.Write[bool]:
        """The batch that publishes the blob, or raises it to the present generation. Whether it was published."""
        of, upload = putting.of, putting.upload
        wanted = [cas.get(self._universe, of), universes.get_generation(self._universe)]
        read = await self._engine.read(*wanted, *([] if upload is None else [chunks.get_upload(upload)]))
        raw, generation = read.value(0), universes.decode_generation(read.value(1))
        batch = kv.Batch()
        if raw is not None:
            if not cas.touch(batch, self._universe, of, raw, generation=generation):
                return transact.NothingToWrite(False)
            return transact.Write(batch, lambda _: False)
        if upload is not None and read.value(2) != upload.raw:
            probes.hit("blobs.upload-swept")
            putting.upload = None
        if putting.object is not None and putting.began != read.value(1):
            probes.hit("blobs.object-overtaken")
            putting.object = None
        if await self._place(putting, time_us=read.time_us) and putting.object is None:
            again = await self._engine.read(universes.get_generation(self._universe))
            generation = universes.decode_generation(again.value(0))  # a collection may have begun meanwhile
        if putting.object is not None:  # a collection that has begun meanwhile deletes it
            putting.began = read.value(1)
            universes.expect_generation(batch, self._universe, putting.began)
        cas.publish(batch, self._universe, of, self._record(batch, putting, generation))
        return transact.Write(batch, lambda _: True)

    async def _attempt_many(
        self, addresses: Sequence[bytes], bodies: Sequence[bytes]
    ) -> transact.NothingToWrite[None] | transact.Write[None]:
        wanted = [cas.get(self._universe, of) for of in addresses]
        read = await self._engine.read(universes.get_generation(self._universe), *wanted)
        generation = universes.decode_generation(read.value(0))
        batch = kv.Batch()
        for index, (of, data) in enumerate(zip(addresses, bodies, strict=True), 1):
            raw = read.value(index)
            # The same bytes are there: which writer has put them makes no difference.
            if raw is not None:
                cas.touch(batch, self._universe, of, raw, generation=generation)
            else:
                cas.publish(batch, self._universe, of, blob.Blob(len(data), generation, inline=data))
        return transact.Write(batch, lambda _: None) if batch.puts else transact.NothingToWrite(None)

    async def _place(self, putting: _Putting, *, time_us: int) -> bool:
        """Write what has to be there before the record is. Whether that took any time."""
        of, data = putting.of, putting.data
        if cas.is_small(data):
            return False
        if len(data) > self._in_store_bytes_max:
            # Of an earlier attempt, which `_attempt` has checked against the generation.
            if putting.object is not None:
                return False
            # A name of its own for each upload: two writers of one blob never write the same object.
            name = keys.object_name(self._universe, of, self._env.random_bytes(limits.ID_BYTES))
            await self._objects.put(name, data)
            putting.object = name
            return True
        if chunks.is_one_batch(data) or putting.upload is not None:
            return False
        await self._upload(putting, time_us=time_us)
        return True

    async def _upload(self, putting: _Putting, *, time_us: int) -> None:
        """Write the chunks of a blob that takes more than one batch. It can be given up from its first batch on."""
        nonce = self._env.random_bytes(limits.ID_BYTES)
        batch = kv.Batch()
        now = age_keys.decode((await self._engine.read(kv.Get(age_keys.age_key(self._universe)))).value(0))
        upload = chunks.begin(
            batch, self._universe, putting.of, nonce, putting.data, time_us=time_us, age_us=now.age_us
        )
        # Before the commit: if its answer is lost, there is still something to give up.
        putting.upload = upload
        await transact.applied(self._engine, self._env, batch)
        for start in chunks.later_parts(putting.data):
            batch = kv.Batch()
            chunks.extend(batch, self._universe, upload, putting.data, start)
            if not await transact.applied(self._engine, self._env, batch):
                return  # it was swept: the batch that publishes it will conflict, and it begins again

    def _record(self, batch: kv.Batch, putting: _Putting, generation: int) -> blob.Blob:
        """The record of a blob, and in the batch what is published together with it."""
        data = putting.data
        if cas.is_small(data):
            return blob.Blob(len(data), generation, inline=data)
        if putting.object is not None:
            return blob.Blob(len(data), generation, object=putting.object)
        if putting.upload is not None:
            chunks.finish(batch, putting.upload)
            return blob.Blob(len(data), generation, chunks=putting.upload.nonce)
        nonce = self._env.random_bytes(limits.ID_BYTES)
        chunks.put(batch, self._universe, putting.of, nonce, data)
        return blob.Blob(len(data), generation, chunks=nonce)

    async def _give_up(self, putting: _Putting) -> None:
        """Delete the chunks of an upload that was not published. If that fails now, they are swept later."""
        if putting.upload is not None:
            probes.hit("blobs.upload-given-up")
            with contextlib.suppress(errors.StoreError):
                await self._discard(putting.upload)

    async def _discard(self, upload: chunks.UploadRecord) -> bool:
        batch = kv.Batch()
        chunks.discard(batch, self._universe, upload)
        return await transact.applied(self._engine, self._env, batch)

    # --- Getting ----------------------------------------------------------------------------------------------

    async def _fetch(self, of: bytes, record: blob.Blob) -> bytes:
        """The blob's bytes, verified. One that was collected and put again meanwhile has another object."""
        damaged = missing = 0
        for _ in range(limits.TRANSACT_ATTEMPTS_MAX):
            if record.inline is not None:
                return record.inline  # verified by `_find`
            try:
                body = await self._body(of, record)
            except errors.NotFound as error:
                found = await self._find(of)
                if (found.object, found.chunks) == (record.object, record.chunks):
                    if found.object is None or missing == READS_MAX - 1:
                        raise errors.Corrupt(f"blob {of.hex()}: {_place(record)} is gone") from error
                    probes.hit("blobs.missing-for-now")
                    await _pause(self._env, missing)
                    missing += 1
                    continue  # a server may not know an object yet that another one has stored
                probes.hit("blobs.replaced-while-read")
                record = found
                continue
            try:
                digest.check(body, of, _place(record))
            except errors.DigestMismatch:
                damaged += 1
                if damaged == READS_MAX:
                    raise
                probes.hit("blobs.read-again")
                continue  # bytes are damaged on their way more often than at rest
            return body
        raise errors.Conflicted(f"blob {of.hex()} was replaced again and again while it was read")

    async def _body(self, of: bytes, record: blob.Blob) -> bytes:
        """The bytes, as they are found. `NotFound` if they are not there, or not all of them."""
        if record.object is not None:
            return await self._objects.get(record.object)
        return await _joined(self._engine, self._universe, of, record)


async def _joined(engine: kv.Engine, universe: ids.UniverseId, of: bytes, record: blob.Blob) -> bytes:
    """The same of a blob in chunks."""
    assert record.chunks is not None
    found: list[bytes] = []
    async for page in paging.RangePages(engine, chunks.read_range(universe, of, record.chunks)):
        found += chunks.decode(universe, of, record.chunks, page, first=len(found))
    body = b"".join(found)
    if len(body) != record.size:
        # Missing, not damaged: `_fetch` then asks whether the blob was put again meanwhile.
        raise errors.NotFound(f"{len(body)} bytes of {record.size} are there")
    return body


async def _pause(env: envs.Env, turn: int) -> None:
    """Before an object that is missing is looked for again."""
    await env.sleep(envs.backoff_ms(env, turn, first_ms=MISSING_FIRST_MS, most_ms=MISSING_MOST_MS) / 1000)


def _groups(bodies: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Bodies in their order: many small ones that fit into one batch, or a single large one. Each comes once."""
    group: list[bytes] = []
    size = 0
    # Equal bodies have one address, and one batch cannot publish it twice.
    for data in dict.fromkeys(bodies):
        is_small = cas.is_small(data)
        full = len(group) == limits.BLOBS_READ_MAX or size + len(data) > limits.BLOBS_BATCH_BYTES_MAX
        if group and (full or not is_small):
            yield group
            group, size = [], 0
        if is_small:
            group.append(data)
            size += len(data)
        else:
            yield [data]
    if group:
        yield group


def _place(record: blob.Blob) -> str:
    """Where a body is, for people."""
    return f"object {record.object}" if record.chunks is None else f"upload {record.chunks.hex()}"


async def load(blobs: BlobReader, carried: payload.Payload) -> bytes:
    """The bytes of a payload, wherever they are."""
    if carried.inline is not None:
        return carried.inline
    assert carried.ref is not None
    data = await blobs.get(carried.ref)
    if len(data) != carried.size:
        raise errors.DecodeError(f"blob {carried.ref.hex()} has {len(data)} bytes; its reference says {carried.size}")
    return data


class _Putting:
    """A blob being put, over all attempts: what has been written of it so far."""

    def __init__(self, of: bytes, data: bytes) -> None:
        self.of = of
        self.data = data
        self.object: str | None = None  # its name, once the object is there
        self.began: bytes | None = None  # the generation, as it was read before the object was put
        self.upload: chunks.UploadRecord | None = None  # of chunks; it may have been swept since
