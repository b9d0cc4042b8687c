"""One garbage collection: garbage goes, what is used stays, also if it is put again or the collection is cut off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests import aging
from tests.features.collection import collecting
from tests.features.collection.test_collection_publishers import Put, program
from tests.features.collection.test_collection_roots import KEPT, Desk
from tests.features.compaction import compacting
from tests.features.compaction.compacting import by_hand
from tests.features.compaction.test_compaction_cuts import Budget, Dying
from tests.kits.kit import Kit
from tests.layers import engines
from tests.layers.histories import LARGE, noise
from tests.layers.scenario import UNIVERSE
from worldline.api.universe_api import Universe
from worldline.base import errors, limits
from worldline.features.collection import batches as collection_batches
from worldline.features.collection.collector import CollectionPass, _Phase
from worldline.features.erasure import key_destruction
from worldline.inspect import verify
from worldline.keys import cas as cas_keys
from worldline.keys import chunks as chunk_keys
from worldline.layers import blobs as blob_layer
from worldline.layers import cas
from worldline.store import kv
from worldline.store.objects import objects_interface as objects

DATA = noise(LARGE)
OF = cas.address(DATA)


def run_of(desk: Desk, **options: Any) -> CollectionPass:
    return CollectionPass(desk.store.engine, desk.store.env, desk.blobs, UNIVERSE, **{"grace_ms": 0, **options})


async def until(run: CollectionPass, phase: _Phase) -> None:
    while run._phase is not phase:
        await run.turn()


def state_of(desk: Desk) -> collection_batches.CollectionState:
    read = desk.store.read(*collection_batches.reads(UNIVERSE))
    return collection_batches.decode(UNIVERSE, read.value(0), read.value(1))


# --- Garbage goes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunked", [False, True], ids=["objects", "chunks"])
@pytest.mark.parametrize("size", [1, limits.INLINE_BYTES_MAX, LARGE, 3_000_000])
async def test_garbage_goes_with_all_it_has(size: int, chunked: bool) -> None:
    desk = Desk(chunked=chunked)
    before = desk.store.everything()
    of = await desk.blobs.put(noise(size))
    report = await collecting.finish(run_of(desk))
    assert (report.swept.unreferenced.count, report.swept.waiting.count, report.swept.deleted.count) == (1, 1, 0)
    assert await desk.blobs.has(of), "one mark may be wrong"
    report = await collecting.finish(run_of(desk))
    assert (report.swept.unreferenced.count, report.swept.deleted.count, report.swept.deleted.bytes) == (0, 1, size)
    assert await desk.blobs.objects.list("") == []
    own = (
        collection_batches.reads(UNIVERSE)[0].key,
        collection_batches.reads(UNIVERSE)[1].key,
        collection_batches.get_holds(UNIVERSE).key,
    )
    assert {key for key in desk.store.everything() if key not in own} == {*before}


async def test_a_grace_is_waited_for() -> None:
    desk = Desk()
    await desk.blobs.put(DATA)
    report = await collecting.finish(run_of(desk, grace_ms=1_000))
    assert (report.swept.unreferenced.count, report.swept.waiting.count) == (1, 1)
    desk.store.env.advance_us(10**12)
    await aging.older(desk.store.engine, UNIVERSE, 999_999)
    report = await collecting.finish(run_of(desk, grace_ms=1_000))
    assert (report.swept.unreferenced.count, report.swept.waiting.count) == (0, 1), "the first time counts, by no clock"
    assert await desk.blobs.has(OF)
    await aging.older(desk.store.engine, UNIVERSE, 1)
    assert (await collecting.finish(run_of(desk, grace_ms=1_000))).swept.deleted.count == 1
    assert not await desk.blobs.has(OF)


async def test_a_dry_run_writes_nothing_and_says_what_would_go() -> None:
    desk = Desk()
    kept = await KEPT["journal"](desk)
    garbage = await desk.blobs.put(noise(LARGE, 99))
    name = cas_keys.object_name(UNIVERSE, OF, bytes(16))
    await desk.blobs.objects.put(name, DATA)
    before = desk.store.everything()
    report = await collecting.finish(run_of(desk, write=False))
    assert desk.store.everything() == before
    assert report.swept.unreferenced.examples == [garbage.hex()]
    assert report.swept.orphans.examples == [name]
    assert report.swept.blobs.count == len(kept) + 1
    await collecting.finish(run_of(desk, grace_ms=10**6))
    report = await collecting.finish(run_of(desk, write=False, grace_ms=10**6))
    assert (report.swept.waiting.count, report.swept.deleted.count) == (1, 0)
    report = await collecting.finish(run_of(desk, write=False))
    assert (report.swept.waiting.count, report.swept.deleted.count) == (0, 1)
    assert await desk.blobs.has(garbage)


@pytest.mark.parametrize("grace_ms", [-1, limits.SETTING_MS_MAX + 1])
def test_a_grace_is_bounded(grace_ms: int) -> None:
    with pytest.raises(errors.BadInput, match="a grace is"):
        run_of(Desk(), grace_ms=grace_ms)


# --- Deleting and putting the same bytes ----------------------------------------------------------------------------


@pytest.mark.parametrize("chunked", [False, True], ids=["objects", "chunks"])
@pytest.mark.parametrize("data", [b"small", DATA, noise(3_000_000)], ids=["small", "large", "upload"])
@pytest.mark.parametrize("phase", [_Phase.BEGIN, _Phase.MARK, _Phase.CONDEMN, _Phase.DELETE, _Phase.ORPHANS])
async def test_bytes_that_are_put_again_are_there(phase: _Phase, data: bytes, chunked: bool) -> None:
    """Whenever the put comes, what it says is stored is stored; and a collection after it takes it again."""
    desk = Desk(chunked=chunked)
    await desk.blobs.put(data)
    await collecting.finish(run_of(desk))
    run = run_of(desk)
    await until(run, phase)
    generation = await desk.blobs.generation()
    of = await desk.blobs.put(data)
    published = kv.Batch()
    generation.expect(published)
    published.absent(b"\x15\x09reference")
    published.put(b"\x15\x09reference", of)
    kept = isinstance(desk.store.commit(published), kv.Ok)
    await collecting.finish(run)
    if kept and phase is not _Phase.BEGIN:  # this reference is in no place that a mark reads
        assert await desk.blobs.get(of) == data
    assert all([await desk.blobs.get(of) == data for _ in range(2) if await desk.blobs.has(of)])
    for _ in range(2):
        await collecting.finish(run_of(desk))
    assert not await desk.blobs.has(of)
    assert await desk.blobs.objects.list("") == []


@pytest.mark.probe("collection.one-by-one")
async def test_a_blob_that_is_used_while_others_are_deleted_is_spared_alone() -> None:
    desk = Desk()
    many = [b"garbage %d" % number for number in range(100)]
    await desk.blobs.put_many(many)
    await collecting.finish(run_of(desk))
    run = run_of(desk)
    await until(run, _Phase.DELETE)

    async def use() -> None:
        await desk.blobs.put(many[50])

    assert run._deleting is not None
    run._deleting._engine = engines.Meddled(desk.store.engine, use)
    report = await collecting.finish(run)
    assert report.swept.deleted.count == 99
    assert await desk.blobs.get(cas.address(many[50])) == many[50]


async def test_a_blob_that_is_put_again_while_it_is_judged_is_not_counted_as_condemned() -> None:
    desk = Desk()
    many = [b"garbage %d" % number for number in range(100)]
    await desk.blobs.put_many(many)
    run = run_of(desk)
    await until(run, _Phase.CONDEMN)

    async def use() -> None:
        await desk.blobs.put(many[50])

    assert run._condemning is not None
    run._condemning._engine = engines.Meddled(desk.store.engine, use)
    report = await collecting.finish(run)
    assert report.swept.unreferenced.count == 99


@pytest.mark.probe("blobs.object-overtaken")
async def test_an_upload_that_a_collection_overtakes_begins_again() -> None:
    """The collection deletes an object that was there before it began; its record is never published."""
    desk = Desk()
    inner = desk.blobs.objects
    puts: list[str] = []

    class Slow:
        """A collection comes between the object and its record."""

        async def put(self, name: str, body: bytes) -> None:
            await inner.put(name, body)
            puts.append(name)
            if len(puts) == 1:
                await desk.collect()

        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

    slow: Any = Slow()
    blobs = blob_layer.Blobs(desk.store.engine, slow, desk.store.env, UNIVERSE)
    assert await blobs.put(DATA) == OF
    assert await blobs.get(OF) == DATA
    assert len(puts) == 2
    assert [each.name for each in await inner.list("")] == [puts[1]], "the first one is gone"


async def test_an_upload_in_chunks_is_not_in_its_way() -> None:
    desk = Desk(chunked=True)
    data = noise(5_000_000)

    async def collect() -> None:
        await desk.collect()

    blobs = blob_layer.Blobs(
        engines.Meddled(desk.store.engine, collect),
        desk.blobs.objects,
        desk.store.env,
        UNIVERSE,
        in_store_bytes_max=limits.CHUNKED_BYTES_MAX,
    )
    assert await blobs.get(await blobs.put(data)) == data
    assert desk.store.under(*chunk_keys.uploads(UNIVERSE)) == []


# --- Objects without a record ---------------------------------------------------------------------------------------


async def test_objects_of_lost_uploads_go_and_others_stay() -> None:
    desk = Desk()
    objects_ = desk.blobs.objects
    lost = cas_keys.object_name(UNIVERSE, OF, bytes(16))
    await objects_.put(lost, DATA)
    foreign = [
        f"{UNIVERSE.hex()}/cas/00/readme",
        f"{UNIVERSE.hex()}/cas/00/{'0' * 64}-00",
        "other/cas/00/x",
        cas_keys.object_name(UNIVERSE, OF, bytes(16)).replace(f"/{OF.hex()[:2]}/", "/zz/"),
    ]
    for name in foreign:
        await objects_.put(name, b"foreign")
    kept = (await KEPT["inbox"](desk))[0]
    desk.store.env.advance_us(999_000)
    report = await collecting.finish(run_of(desk, grace_ms=1_000))
    assert report.swept.orphans.count == 0, "it is too young"
    desk.store.env.advance_us(1_000)
    report = await collecting.finish(run_of(desk, grace_ms=1_000))
    assert report.swept.orphans.examples == [lost]
    assert await desk.blobs.get(kept) == DATA, "another object of the same bytes"
    assert {*foreign} < {each.name for each in await objects_.list("")}


@pytest.mark.probe("collection.object-left")
async def test_an_object_that_cannot_be_deleted_is_an_orphan_for_the_next_collection() -> None:
    desk = Desk()
    await desk.blobs.put(DATA)

    class Down:
        async def delete(self, name: str) -> None:
            raise errors.StoreUnavailable("down")

        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

    inner = desk.blobs.objects
    await collecting.finish(run_of(desk))
    run = run_of(desk)
    down: Any = Down()
    await until(run, _Phase.DELETE)
    assert run._deleting is not None
    run._deleting._store = down
    await collecting.finish(run)
    assert not await desk.blobs.has(OF)
    assert len(await inner.list("")) == 1
    assert (await collecting.finish(run_of(desk))).swept.orphans.count == 1
    assert await inner.list("") == []


# --- Cut off anywhere -----------------------------------------------------------------------------------------------


class DyingObjects:
    def __init__(self, inner: objects.Objects, budget: Budget) -> None:
        self._inner = inner
        self._budget = budget

    async def delete(self, name: str) -> None:
        self._budget.check()
        await self._inner.delete(name)
        self._budget.spend()
        self._budget.check()

    def __getattr__(self, name: str) -> Any:
        self._budget.check()
        return getattr(self._inner, name)


@pytest.mark.parametrize("chunked", [False, True], ids=["objects", "chunks"])
async def test_cut_off_at_any_write_it_leaves_everything_readable_and_ends_later(chunked: bool) -> None:
    for writes in range(1, 100):
        desk = Desk(chunked=chunked)
        kept = [of for build in KEPT.values() for of in await build(desk)]
        garbage = [await desk.blobs.put(noise(size, 1_000 + size)) for size in (10, LARGE, 3_000_000)]
        orphan = cas_keys.object_name(UNIVERSE, OF, bytes(16))
        await desk.blobs.objects.put(orphan, DATA)
        budget = Budget(writes)
        dying: Any = DyingObjects(desk.blobs.objects, budget)
        cut = blob_layer.Blobs(Dying(desk.store.engine, budget), dying, desk.store.env, UNIVERSE)
        ended = True
        try:
            await collecting.finish(
                CollectionPass(Dying(desk.store.engine, budget), desk.store.env, cut, UNIVERSE, grace_ms=0)
            )
        except errors.StoreFailed:
            ended = False
        for of in kept:
            assert await desk.blobs.has(of)
        assert await collecting.missing(desk.store.engine, desk.blobs, UNIVERSE) == []
        desk.store.env.advance_us(collection_batches.MARK_MS * 1000)
        await desk.collect()
        assert not any(await desk.has(garbage))
        assert orphan not in [each.name for each in await desk.blobs.objects.list("")]
        assert await collecting.missing(desk.store.engine, desk.blobs, UNIVERSE) == []
        if ended:
            assert writes > 5
            return
    raise AssertionError("it never came to its end")


@pytest.mark.probe("collection.key-destroyed")
async def test_a_world_whose_key_was_destroyed_refers_to_nothing(tmp_path: Path) -> None:
    """What it referred to goes, and it does not keep the garbage of other worlds."""
    app = program()
    codec = wl.ops.AesGcm(keys={"a": bytes(32)}, current="a")
    async with wl.open(str(tmp_path / "store"), host=app, codec=codec) as universe:
        world, other = await universe.create("w", app), await universe.create("v", app)
        await world.send(Put("1" * 40_000))
        await other.send(Put("2" * 40_000))
        around = collecting.Around(universe)
        await key_destruction.destroy_key(universe._connection, await world._handle.address())
        assert (await universe.collect(grace=0)).deleted.count > 0
        assert (await around.collect()).swept.deleted.count == 0
        assert (await other.state())["Shelf"][""]["last"] == "2" * 40_000


# --- Worlds, on every engine ----------------------------------------------------------------------------------------


async def test_worlds_that_live_are_collected_and_lose_nothing(kit: Kit) -> None:
    app = program()
    async with kit.hosting(app, settings=by_hand()) as universe:
        around = collecting.Around(universe)
        world = await universe.ensure("w", app)
        for number in range(6):
            await world.send(Put(str(number) * 30_000))
            await world.snapshot()
        fork = await world.fork("f", script=[{"effect": "make", "answer": "z" * 20_000}])
        await fork.send(Put("own" * 10_000))
        await world.run(app.workflows["answered"](50_000), timeout=30)
        host: Any = universe._connection.host
        await compacting.compactions(host).compact(host.worlds.peek(await world._handle.address()), now=True)
        report = await around.collect()
        assert report.swept.deleted.count > 0, "dropped snapshots"
        assert await around.missing() == []
        assert await around.garbage() == []
        assert (await around.collect()).swept.deleted.count == 0
        await _whole(universe, world, fork)
    async with kit.hosting(app) as universe:
        await _whole(universe, universe.world("w"), universe.world("f"))


async def _whole(universe: Universe, *worlds: wl.World) -> None:
    for world in worlds:
        await verify.verify(universe._connection, await world._handle.address())
    assert (await universe.world("w").state())["Shelf"][""]["last"] == "5" * 30_000
