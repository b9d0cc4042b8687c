"""Blobs of any size: verified wherever they come from, published last, readable in their own universe only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from tests import aio
from tests.layers import scenario
from tests.layers.scenario import OTHER_UNIVERSE, UNIVERSE, Store
from worldline.base import errors, limits
from worldline.keys import cas as keys
from worldline.keys import universes as universe_keys
from worldline.layers import blobs, cas
from worldline.model import blobs as blob
from worldline.model import payload
from worldline.store.objects import cached_objects as blob_cache
from worldline.store.objects import folder_objects as objects_folder
from worldline.store.objects import memory_objects as objects_memory
from worldline.store.objects import objects_interface as objects

LIMIT = limits.INLINE_BYTES_MAX
SMALL = b"s" * LIMIT
LARGE = b"L" * (LIMIT + 1)
PLACES = ["memory", "folder"]


class Hooked:
    """An object store in which something happens around a call."""

    def __init__(self, inner: objects.Objects) -> None:
        self.inner = inner
        self.puts = 0
        self.after_put: Callable[[], Awaitable[object]] | None = None
        self.before_get: Callable[[], Awaitable[object]] | None = None

    async def put(self, name: str, body: bytes) -> None:
        self.puts += 1
        await self.inner.put(name, body)
        if self.after_put is not None:
            await self.after_put()

    async def get(self, name: str) -> bytes:
        hook, self.before_get = self.before_get, None
        if hook is not None:
            await hook()
        return await self.inner.get(name)

    async def list(self, prefix: str, *, after: str = "", count_max: int = 1000) -> list[objects.ListedObject]:
        return await self.inner.list(prefix, after=after, count_max=count_max)

    async def delete(self, name: str) -> None:
        await self.inner.delete(name)

    async def close(self) -> None:
        await self.inner.close()


class Bench:
    """A store, an object store and the blobs of two universes in them."""

    def __init__(self, store: Store, inner: objects.Objects, cache: blob_cache.BlobCache | None = None) -> None:
        self.store = store
        self.objects = Hooked(inner)
        self.blobs = blobs.Blobs(store.engine, self.objects, store.env, UNIVERSE, cache=cache)
        self.others = blobs.Blobs(store.engine, self.objects, store.env, OTHER_UNIVERSE, cache=cache)

    async def names(self) -> list[str]:
        return [listed.name for listed in await self.objects.list("")]

    def record(self, data: bytes) -> blob.Blob:
        of = cas.address(data)
        return cas.decode(of, self.store.value(keys.blob_key(UNIVERSE, of)))

    async def damage_object(self, data: bytes) -> None:
        name = self.record(data).object
        assert name is not None
        await self.objects.inner.delete(name)
        await self.objects.inner.put(name, scenario.flipped(data))

    def forget(self, data: bytes) -> None:
        """As garbage collection does it: the record goes first."""
        self.store.erase([keys.blob_key(UNIVERSE, cas.address(data))])

    def set_generation(self, number: int) -> None:
        self.store.set(universe_keys.generation_key(UNIVERSE), universe_keys.GENERATION.pack(blob.Generation(number)))


@asynccontextmanager
async def bench(place: str, folder: Path, *, cached: bool = False) -> AsyncIterator[Bench]:
    store = Store()
    inner: objects.Objects
    if place == "memory":
        inner = objects_memory.MemoryObjects(store.env)
    else:
        inner = await objects_folder.open(folder / "objects", create=True)
    cache = await blob_cache.open(folder / "cache", store.env, bytes_max=8 * limits.MIB) if cached else None
    try:
        yield Bench(store, inner, cache)
    finally:
        await inner.close()


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("size", [0, 1, LIMIT - 1, LIMIT, LIMIT + 1, limits.MIB])
async def test_what_was_put_is_got(tmp_path: Path, place: str, size: int, cached: bool) -> None:
    async with bench(place, tmp_path, cached=cached) as at:
        data = bytes(index % 251 for index in range(size))
        of = cas.address(data)
        assert await at.blobs.has(of) is False
        with pytest.raises(errors.NotFound):
            await at.blobs.get(of)
        assert await at.blobs.put(data) == of
        assert await at.blobs.put(data, expected=of) == of
        for _ in range(2):
            assert await at.blobs.get(of) == data
        assert await at.blobs.has(of) is True
        record, names = at.record(data), await at.names()
        assert (record.inline is None) == (size > LIMIT)
        assert names == ([] if record.object is None else [record.object])
        assert all(name.startswith(f"{UNIVERSE.hex()}/") for name in names)


@pytest.mark.parametrize("data", [SMALL, LARGE])
async def test_wrong_expectation_is_refused_and_writes_nothing(tmp_path: Path, data: bytes) -> None:
    async with bench("memory", tmp_path) as at:
        with pytest.raises(errors.DigestMismatch) as caught:
            await at.blobs.put(data, expected=cas.address(b"other"))
        assert (caught.value.expected, caught.value.actual) == (cas.address(b"other"), cas.address(data))
        assert (at.store.everything(), at.objects.puts) == ({}, 0)


@pytest.mark.parametrize("over", [0, 1])
async def test_blob_over_the_limit_is_refused(tmp_path: Path, over: int) -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return limits.BLOB_BYTES_MAX + over

    async with bench("memory", tmp_path) as at:
        if over:
            with pytest.raises(errors.TooLarge, match="blob"):
                await at.blobs.put(Huge())
            assert (at.store.everything(), at.objects.puts) == ({}, 0)
        else:
            await at.blobs.put(Huge())
            assert at.objects.puts == 1


# --- races and crashes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [SMALL, LARGE])
async def test_racing_puts_all_succeed_and_publish_one_record(tmp_path: Path, data: bytes) -> None:
    async with bench("folder", tmp_path) as at:
        found = await asyncio.gather(*(at.blobs.put(data) for _ in range(8)))
        assert found == [cas.address(data)] * 8
        assert await at.blobs.get(found[0]) == data
        names = await at.names()
        assert len(names) == at.objects.puts
        assert at.record(data).object in ([None] if data is SMALL else names)


async def test_loser_of_a_race_leaves_the_winners_record_alone(tmp_path: Path) -> None:
    async with bench("memory", tmp_path) as at:
        rival = blobs.Blobs(at.store.engine, at.objects.inner, at.store.env, UNIVERSE)
        at.objects.after_put = lambda: rival.put(LARGE)
        await at.blobs.put(LARGE)
        assert len(await at.names()) == 2
        winner = at.record(LARGE).object
        assert await at.blobs.get(cas.address(LARGE)) == LARGE
        [loser] = [name for name in await at.names() if name != winner]
        await at.objects.delete(loser)  # what garbage collection will do
        assert await at.blobs.get(cas.address(LARGE)) == LARGE


@pytest.mark.parametrize("place", PLACES)
async def test_crash_between_upload_and_publish_leaves_nothing_readable(tmp_path: Path, place: str) -> None:
    async with bench(place, tmp_path) as at:

        async def crash() -> None:
            raise errors.StoreUnavailable("killed")

        at.objects.after_put = crash
        with pytest.raises(errors.StoreUnavailable):
            await at.blobs.put(LARGE)
        assert len(await at.names()) == 1
        assert await at.blobs.has(cas.address(LARGE)) is False
        with pytest.raises(errors.NotFound):
            await at.blobs.get(cas.address(LARGE))
        at.objects.after_put = None
        await at.blobs.put(LARGE)
        assert await at.blobs.get(cas.address(LARGE)) == LARGE
        assert len(await at.names()) == 2


@pytest.mark.parametrize("fates", [["lost"], ["applied"], ["late"], ["lost", "applied"], ["applied", "lost"]])
@pytest.mark.parametrize("data", [SMALL, LARGE])
async def test_lost_answer_to_the_publishing_is_resolved(tmp_path: Path, data: bytes, fates: list[str]) -> None:
    async with bench("memory", tmp_path) as at:
        engine = scenario.Unsure(at.store.engine, fates)
        unsure = blobs.Blobs(engine, at.objects, at.store.env, UNIVERSE)
        await unsure.put(data)
        assert await at.blobs.get(cas.address(data)) == data
        assert len(await at.names()) == (0 if data is SMALL else 1)


async def test_blob_collected_while_it_is_read_is_not_found(tmp_path: Path) -> None:
    async with bench("memory", tmp_path) as at:
        await at.blobs.put(LARGE)

        async def collect() -> None:
            [name] = await at.names()
            at.forget(LARGE)
            await at.objects.delete(name)

        at.objects.before_get = collect
        with pytest.raises(errors.NotFound):
            await at.blobs.get(cas.address(LARGE))


@pytest.mark.probe("blobs.replaced-while-read")
async def test_blob_collected_and_put_again_while_it_is_read_is_found(tmp_path: Path) -> None:
    async with bench("memory", tmp_path) as at:
        await at.blobs.put(LARGE)

        async def collect_and_put() -> None:
            [name] = await at.names()
            at.forget(LARGE)
            await at.objects.delete(name)
            await at.blobs.put(LARGE)

        at.objects.before_get = collect_and_put
        assert await at.blobs.get(cas.address(LARGE)) == LARGE


async def test_blob_put_again_is_raised_to_the_present_generation(tmp_path: Path) -> None:
    """A collection that began in between would otherwise take it for unused."""
    async with bench("memory", tmp_path) as at:
        for data in (SMALL, LARGE):
            at.set_generation(1)
            await at.blobs.put(data)
            before = at.record(data)
            assert before.generation == 1
            at.set_generation(2)
            await at.blobs.put(data)
            after = at.record(data)
            assert (after.generation, after.inline, after.object) == (2, before.inline, before.object)
        assert at.objects.puts == 1


# --- damage ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [SMALL, LARGE])
async def test_damaged_record_is_noticed(tmp_path: Path, data: bytes) -> None:
    async with bench("memory", tmp_path, cached=True) as at:
        of = await at.blobs.put(data)
        await at.blobs.get(of)
        key = keys.blob_key(UNIVERSE, of)
        at.store.set(key, scenario.flipped(at.store.value(key) or b""))
        with pytest.raises(errors.DecodeError):
            await at.blobs.get(of)
        with pytest.raises(errors.DecodeError):
            await at.blobs.put(data)


async def test_record_with_another_blobs_bytes_is_noticed(tmp_path: Path) -> None:
    async with bench("memory", tmp_path) as at:
        of = await at.blobs.put(SMALL)
        at.store.set(keys.blob_key(UNIVERSE, of), keys.BLOB.pack(blob.Blob(5, 0, inline=b"other")))
        with pytest.raises(errors.DigestMismatch):
            await at.blobs.get(of)
        with pytest.raises(errors.DigestMismatch):
            await at.blobs.put(SMALL)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.probe("blobs.read-again")
async def test_damaged_object_is_noticed_every_time(tmp_path: Path, place: str, cached: bool) -> None:
    async with bench(place, tmp_path, cached=cached) as at:
        of = await at.blobs.put(LARGE)
        await at.damage_object(LARGE)
        for _ in range(2):
            with pytest.raises(errors.DigestMismatch):
                await at.blobs.get(of)


@pytest.mark.parametrize("place", PLACES)
async def test_missing_object_is_damage_not_absence(tmp_path: Path, place: str) -> None:
    async with bench(place, tmp_path) as at:
        of = await at.blobs.put(LARGE)
        [name] = await at.names()
        await at.objects.delete(name)
        with pytest.raises(errors.Corrupt, match="is gone") as caught:
            await at.blobs.get(of)
        assert isinstance(caught.value.__cause__, errors.NotFound)


def cache_files(folder: Path) -> list[Path]:
    return [path for path in (folder / "cache").rglob("*") if path.is_file()]


@pytest.mark.parametrize("place", PLACES)
async def test_damaged_cache_is_healed_from_the_source(tmp_path: Path, place: str) -> None:
    async with bench(place, tmp_path, cached=True) as at:
        of = await at.blobs.put(LARGE)
        assert await at.blobs.get(of) == LARGE
        [cached] = cache_files(tmp_path)
        cached.write_bytes(scenario.flipped(LARGE))
        assert await at.blobs.get(of) == LARGE
        assert cache_files(tmp_path)[0].read_bytes() == LARGE
        # Both bad: an error, never data.
        cached.write_bytes(scenario.flipped(LARGE))
        await at.damage_object(LARGE)
        with pytest.raises(errors.DigestMismatch):
            await at.blobs.get(of)


async def test_cache_spares_the_object_store(tmp_path: Path) -> None:
    async with bench("memory", tmp_path, cached=True) as at:
        of = await at.blobs.put(LARGE)
        await at.blobs.get(of)
        [name] = await at.names()
        await at.objects.delete(name)
        assert await at.blobs.get(of) == LARGE
        await at.blobs.get(await at.blobs.put(SMALL))
        assert len(cache_files(tmp_path)) == 1, "what the store holds is not cached again"


async def test_shared_cache_does_not_leak_between_universes(tmp_path: Path) -> None:
    async with bench("memory", tmp_path, cached=True) as at:
        of = await at.blobs.put(LARGE)
        await at.blobs.get(of)
        assert await at.others.has(of) is False
        with pytest.raises(errors.NotFound):
            await at.others.get(of)
        at.forget(LARGE)
        with pytest.raises(errors.NotFound):
            await at.blobs.get(of)


# --- payloads -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("data", "is_carried"), [(b"", True), (SMALL[1:], True), (SMALL, True), (LARGE, False)])
async def test_payload_is_carried_or_put(tmp_path: Path, data: bytes, is_carried: bool) -> None:
    async with bench("memory", tmp_path) as at:
        carried = await at.blobs.carry(data)
        assert carried == (payload.inline(data) if is_carried else payload.reference(cas.address(data), size=len(data)))
        assert (at.store.everything() == {}) == is_carried
        assert await at.blobs.load(carried) == data


@pytest.mark.parametrize("size", [0, LIMIT, LIMIT + 2])
async def test_payload_of_another_size_is_refused(tmp_path: Path, size: int) -> None:
    async with bench("memory", tmp_path) as at:
        of = await at.blobs.put(LARGE)
        with pytest.raises(errors.DecodeError, match=f"{LIMIT + 1} bytes; its reference says {size}"):
            await at.blobs.load(payload.reference(of, size=size))


async def test_payload_whose_blob_is_unknown(tmp_path: Path) -> None:
    async with bench("memory", tmp_path) as at:
        await at.others.put(LARGE)
        with pytest.raises(errors.NotFound):
            await at.blobs.load(payload.reference(cas.address(LARGE), size=len(LARGE)))


# --- a model --------------------------------------------------------------------------------------------------

BODIES = [b"", b"a", b"b", SMALL, LARGE, LARGE + b"x"]
ACTS = st.lists(
    st.tuples(
        st.sampled_from(["put", "get", "forget", "collect", "damage"]), st.booleans(), st.integers(0, len(BODIES) - 1)
    ),
    max_size=25,
)


@hypothesis.given(ACTS)
@hypothesis.settings(max_examples=100)
def test_any_mix_against_a_model(acts: list[tuple[str, bool, int]]) -> None:
    aio.run(mix(acts))


async def mix(acts: list[tuple[str, bool, int]]) -> None:
    store = Store()
    at = Bench(store, objects_memory.MemoryObjects(store.env))
    there: dict[tuple[bool, int], bool] = {}  # in the other universe?, which body -> is its object damaged
    generation = 0
    for act, other, number in acts:
        side, data, here = at.others if other else at.blobs, BODIES[number], (other, number)
        of = cas.address(data)
        if act == "put":
            await side.put(data)
            there.setdefault(here, False)
        elif act == "collect":
            generation += 1
            at.set_generation(generation)
        elif act == "forget" and not other and here in there:
            at.forget(data)
            del there[here]
        elif act == "damage" and not other and here in there and not cas.is_small(data) and not there[here]:
            await at.damage_object(data)
            there[here] = True
        assert await side.has(of) == (here in there)
        if there.get(here):
            with pytest.raises(errors.DigestMismatch):
                await side.get(of)
        elif here in there:
            assert await side.get(of) == data
        else:
            with pytest.raises(errors.NotFound):
                await side.get(of)


# --- Many at once -----------------------------------------------------------------------------------------------------


async def test_many_are_put_and_got(tmp_path: Path) -> None:
    async with bench("memory", tmp_path) as at:
        bodies = [b"%d" % number for number in range(1_200)] + [LARGE, SMALL, b"last", b"last"]
        await at.blobs.put_many(bodies)
        addresses = [cas.address(data) for data in bodies]
        assert await at.blobs.get_many(addresses) == dict(zip(addresses, bodies, strict=True))
        before = at.store.everything()
        await at.blobs.put_many(bodies)
        assert at.store.everything() == before


async def test_many_that_are_there_are_raised_to_the_present_generation(tmp_path: Path) -> None:
    async with bench("memory", tmp_path) as at:
        await at.blobs.put_many([b"old"])
        at.set_generation(7)
        await at.blobs.put_many([b"new", b"old", LARGE])
        assert [at.record(data).generation for data in (b"new", b"old", LARGE)] == [7, 7, 7]


async def test_what_refers_to_others_is_put_behind_them(tmp_path: Path) -> None:
    """A put of many that is cut short leaves nothing that refers to what is not there."""
    async with bench("memory", tmp_path) as at:

        async def lost() -> None:
            raise errors.StoreUnavailable("cut")

        at.objects.after_put = lost
        with pytest.raises(errors.StoreUnavailable):
            await at.blobs.put_many([b"below", LARGE, b"refers to both"])
        assert await at.blobs.has(cas.address(b"below"))
        assert not await at.blobs.has(cas.address(LARGE))
        assert not await at.blobs.has(cas.address(b"refers to both"))


@pytest.mark.parametrize("data", [b"small", LARGE])
async def test_of_many_the_one_that_cannot_be_read_is_named(tmp_path: Path, data: bytes) -> None:
    async with bench("memory", tmp_path) as at:
        await at.blobs.put_many([b"first", data, b"last"])
        at.forget(data)
        wanted = [cas.address(each) for each in (b"first", data, b"last")]
        with pytest.raises(blobs.BadBlob, match=f"blob {cas.address(data).hex()}: no blob") as caught:
            await at.blobs.get_many(wanted)
        assert caught.value.address == cas.address(data)


async def test_putting_many_and_one_of_them_at_the_same_time(tmp_path: Path) -> None:
    async with bench("memory", tmp_path) as at:
        bodies = [b"%d" % number for number in range(40)]
        await asyncio.gather(*(at.blobs.put_many(bodies[start:]) for start in range(5)), at.blobs.put(bodies[20]))
        assert list((await at.blobs.get_many([cas.address(each) for each in bodies])).values()) == bodies
