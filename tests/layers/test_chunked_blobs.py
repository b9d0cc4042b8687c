"""Blobs in chunks when things go wrong: crashes between batches, lost answers, sweeps, damage, collections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests import aging
from tests.layers import scenario
from tests.layers.scenario import UNIVERSE, Store
from worldline.base import errors, limits
from worldline.keys import cas as keys
from worldline.keys import chunks as chunk_keys
from worldline.keys import space
from worldline.keys import universes as universe_keys
from worldline.layers import blobs, cas, chunks
from worldline.model import blobs as blob
from worldline.runtime import store_opening
from worldline.store import kv
from worldline.store.objects import memory_objects as objects_memory
from worldline.store.objects import objects_interface as objects

SMALL = b"s" * limits.INLINE_BYTES_MAX
ONE_BATCH = bytes(range(256)) * 300
LARGE = b"".join(number.to_bytes(8, "big") for number in range(5 * limits.MIB // 8))
OF = cas.address(LARGE)
COMMITS = 4  # three parts, and the record


class Watched:
    """An engine in which something happens before a chosen commit or read, by its number."""

    def __init__(self, engine: kv.Engine) -> None:
        self.engine = engine
        self.commits = self.reads = 0
        self.before_commit: dict[int, Callable[[], Awaitable[object]]] = {}
        self.before_read: dict[int, Callable[[], Awaitable[object]]] = {}

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        self.reads += 1
        if self.reads in self.before_read:
            await self.before_read[self.reads]()
        return await self.engine.read(*requests)

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        self.commits += 1
        if self.commits in self.before_commit:
            await self.before_commit[self.commits]()
        return await self.engine.commit(*batches)

    async def wait(self, prefix: bytes, seen: int, timeout_ms: int) -> bool:
        return await self.engine.wait(prefix, seen, timeout_ms)

    async def durability(self) -> kv.Durability:
        return await self.engine.durability()

    async def close(self) -> None:
        await self.engine.close()


class Bench:
    def __init__(self, bodies: objects.Objects | None = None) -> None:
        self.store = Store()
        self.engine = Watched(self.store.engine)
        self.objects = store_opening.NoObjects() if bodies is None else bodies
        self.blobs = self.over(self.engine)

    def over(self, engine: kv.Engine, *, in_store_bytes_max: int = limits.CHUNKED_BYTES_MAX) -> blobs.Blobs:
        return blobs.Blobs(engine, self.objects, self.store.env, UNIVERSE, in_store_bytes_max=in_store_bytes_max)

    def record(self, data: bytes) -> blob.Blob:
        of = cas.address(data)
        return cas.decode(of, self.store.value(keys.blob_key(UNIVERSE, of)))

    def under(self, part: space.InUniverse) -> list[bytes]:
        prefix = space.universe(UNIVERSE) + space.part(part)
        return [key for key, _ in self.store.under(prefix, prefix + b"\xff")]

    def chunks(self) -> list[bytes]:
        return self.under(space.InUniverse.CHUNK)

    def uploads(self) -> list[bytes]:
        return self.under(space.InUniverse.UPLOAD)

    def chunk(self, data: bytes, number: int) -> bytes:
        nonce = self.record(data).chunks
        assert nonce is not None
        return chunk_keys.chunk_key(UNIVERSE, cas.address(data), nonce, number)

    def collect(self, data: bytes) -> None:
        """As garbage collection does it: the record, then the chunks."""
        gone = self.chunks()
        self.store.erase([keys.blob_key(UNIVERSE, cas.address(data))])
        self.store.erase(gone)

    def set_generation(self, number: int) -> None:
        self.store.set(universe_keys.generation_key(UNIVERSE), universe_keys.GENERATION.pack(blob.Generation(number)))


async def dead() -> None:
    raise errors.StoreFailed("this process is dead")


@pytest.mark.parametrize("last", range(1, COMMITS + 1))
async def test_crash_before_any_commit_leaves_nothing_readable_and_can_be_swept(last: int) -> None:
    at = Bench()
    at.engine.before_commit = dict.fromkeys(range(last, last + 2), dead)  # it cannot clear up after itself either
    with pytest.raises(errors.StoreFailed):
        await at.blobs.put(LARGE)
    assert len(at.uploads()) == (last > 1)
    alive = at.over(at.store.engine)
    assert await alive.has(OF) is False
    with pytest.raises(errors.NotFound):
        await alive.get(OF)
    await alive.put(LARGE)
    whole = -(-len(LARGE) // chunks.CHUNK)
    assert len(at.chunks()) == whole + min(whole, (last - 1) * limits.CHUNKS_BATCH_MAX)
    await aging.older(at.store.engine, UNIVERSE, 1)
    assert await alive.abandoned(period_us=1, remove=True) == (last > 1)
    assert (len(at.chunks()), at.uploads()) == (whole, [])
    assert await alive.get(OF) == LARGE


@pytest.mark.probe("blobs.upload-given-up")
async def test_an_upload_that_fails_clears_up_after_itself() -> None:
    """A full store must not be filled further by each attempt."""

    async def full() -> None:
        raise errors.StoreFull("no space")

    at = Bench()
    at.engine.before_commit = {3: full}
    with pytest.raises(errors.StoreFull):
        await at.blobs.put(LARGE)
    assert at.store.everything() == {}


@pytest.mark.parametrize("number", range(2, COMMITS + 1))
@pytest.mark.probe("blobs.upload-swept")
async def test_an_upload_that_is_swept_while_it_is_written_begins_again(number: int) -> None:
    at = Bench()
    alive = at.over(at.store.engine)
    at.engine.before_commit = {number: lambda: alive.abandoned(period_us=0, remove=True)}
    await at.blobs.put(LARGE)
    assert await at.blobs.get(OF) == LARGE
    assert (len(at.chunks()), at.uploads()) == (-(-len(LARGE) // chunks.CHUNK), [])


async def test_an_upload_whose_record_is_damaged_can_be_swept() -> None:
    at = Bench()
    batch = kv.Batch()
    upload = chunks.begin(batch, UNIVERSE, OF, bytes(16), LARGE, time_us=at.store.time_us, age_us=1)
    at.store.ok(batch)
    at.store.set(upload.key, scenario.flipped(upload.raw))
    assert await at.blobs.abandoned(period_us=1, remove=True) == 1, "it counts as old as the universe"
    assert at.store.everything() == {}


@pytest.mark.parametrize("page", [1, 2, 5, 100])
async def test_uploads_are_swept_page_by_page(monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    monkeypatch.setattr(limits, "UPLOADS_PAGE", page)
    at = Bench()
    for number in range(5):
        data = bytes([number]) * (chunks.PART + 1)
        batch = kv.Batch()
        chunks.begin(batch, UNIVERSE, cas.address(data), bytes(16), data, time_us=0, age_us=1 + number)
        at.store.ok(batch)
    await aging.older(at.store.engine, UNIVERSE, 9)
    for remove, left in ((False, 5), (True, 2)):
        assert await at.blobs.abandoned(period_us=7, remove=remove) == 3
        assert len(at.uploads()) == left
    assert len(at.chunks()) == 2 * limits.CHUNKS_BATCH_MAX


@pytest.mark.parametrize("number", range(1, COMMITS + 1))
async def test_the_loser_of_a_race_leaves_the_winners_alone(number: int) -> None:
    at = Bench()
    rival = at.over(at.store.engine)
    at.engine.before_commit = {number: lambda: rival.put(LARGE)}
    await at.blobs.put(LARGE)
    assert await at.blobs.get(OF) == LARGE
    assert (len(at.chunks()), at.uploads()) == (-(-len(LARGE) // chunks.CHUNK), [])


@pytest.mark.parametrize("fate", ["lost", "applied", "late"])
@pytest.mark.parametrize("number", range(COMMITS))
async def test_a_lost_answer_to_any_commit_is_resolved(number: int, fate: str) -> None:
    at = Bench()
    unsure = scenario.Unsure(at.store.engine, ["ok"] * number + [fate])
    await at.over(unsure).put(LARGE)
    assert await at.blobs.get(OF) == LARGE
    assert (len(at.chunks()), at.uploads()) == (-(-len(LARGE) // chunks.CHUNK), [])


async def test_a_blob_of_one_batch_is_one_commit() -> None:
    at = Bench()
    await at.blobs.put(ONE_BATCH)
    assert at.engine.commits == 1
    assert at.record(ONE_BATCH).chunks is not None
    await at.blobs.put(ONE_BATCH)
    assert at.engine.commits == 1


# --- Generations and collections -------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [ONE_BATCH, LARGE])
async def test_a_blob_put_again_is_raised_and_not_written_again(data: bytes) -> None:
    at = Bench()
    at.set_generation(1)
    await at.blobs.put(data)
    before, written = at.record(data), at.chunks()
    at.set_generation(2)
    await at.blobs.put(data)
    after = at.record(data)
    assert (before.generation, after.generation, after.chunks) == (1, 2, before.chunks)
    assert at.chunks() == written


async def test_a_collection_that_begins_during_the_upload_does_not_take_it() -> None:
    at = Bench()

    async def begin() -> None:
        at.set_generation(7)

    at.engine.before_commit = {3: begin}
    await at.blobs.put(LARGE)
    assert at.record(LARGE).generation == 7


@pytest.mark.parametrize("number", [2, 3])
async def test_blob_collected_while_it_is_read_is_not_found(number: int) -> None:
    at = Bench()
    await at.blobs.put(LARGE)

    async def collect() -> None:
        at.collect(LARGE)

    at.engine.before_read = {at.engine.reads + number: collect}
    with pytest.raises(errors.NotFound):
        await at.blobs.get(OF)


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.probe("blobs.replaced-while-read")
async def test_blob_collected_and_put_again_while_it_is_read_is_found(number: int) -> None:
    at = Bench()
    await at.blobs.put(LARGE)

    async def collect_and_put() -> None:
        at.collect(LARGE)
        await at.over(at.store.engine).put(LARGE)

    at.engine.before_read = {at.engine.reads + number: collect_and_put}
    assert await at.blobs.get(OF) == LARGE


# --- Damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1, 64, 81])
@pytest.mark.parametrize("data", [ONE_BATCH, LARGE])
async def test_damaged_and_missing_chunks_are_noticed(data: bytes, number: int) -> None:
    at = Bench()
    of = await at.blobs.put(data)
    key = at.chunk(data, min(number, len(at.chunks()) - 1))
    good = at.store.value(key)
    assert good is not None
    at.store.set(key, scenario.flipped(good))
    with pytest.raises(errors.DecodeError):
        await at.blobs.get(of)
    at.store.set(key, chunk_keys.CHUNK.pack(blob.BlobChunk(scenario.flipped(chunk_keys.CHUNK.unpack(good).data))))
    with pytest.raises(errors.DigestMismatch, match="upload"):
        await at.blobs.get(of)
    at.store.erase([key])
    with pytest.raises(errors.Corrupt, match="is gone"):
        await at.blobs.get(of)
    at.store.set(key, good)
    assert await at.blobs.get(of) == data


# --- Where a blob goes -----------------------------------------------------------------------------------------------


async def test_where_a_blob_is_kept_depends_on_its_size_and_the_store() -> None:
    store = Store()
    bodies = objects_memory.MemoryObjects(store.env)
    at = Bench(bodies)
    huge = bytes(limits.CHUNKED_BYTES_MAX + 1)
    for data in (SMALL, LARGE, huge):
        assert await at.blobs.get(await at.blobs.put(data)) == data
    places = [
        (each.inline is None, each.chunks is None, each.object is None) for each in map(at.record, (SMALL, LARGE))
    ]
    assert places == [(False, True, True), (True, False, True)]
    assert [listed.name for listed in await bodies.list("")] == [at.record(huge).object]


async def test_what_one_way_of_opening_has_put_the_other_reads() -> None:
    bodies = objects_memory.MemoryObjects(Store().env)
    at = Bench(bodies)
    with_objects = at.over(at.store.engine, in_store_bytes_max=0)
    first, second = await at.blobs.put(LARGE), await with_objects.put(ONE_BATCH)
    assert await with_objects.get(first) == LARGE
    assert await at.blobs.get(second) == ONE_BATCH
    at.objects = store_opening.NoObjects()
    with pytest.raises(errors.StoreMissing, match="no object store was given"):
        await at.over(at.store.engine).get(second)
