"""Garbage collection by the janitor: when it is time, never if told so; failures are counted, no mark is left."""

from __future__ import annotations

import pytest

from tests import aging
from tests.features.collection.test_collection import DATA
from tests.features.collection.test_collection_publishers import program
from tests.kits import kit as kits
from tests.kits.janitors import janitor_of
from tests.kits.kit import Kit
from tests.layers.histories import LARGE
from worldline.base import errors
from worldline.cluster.janitor import Janitor
from worldline.features.collection import batches as collection_batches
from worldline.features.collection import collector
from worldline.features.collection import job as collection_job
from worldline.features.collection.collector import CollectionPass
from worldline.features.collection.job import CollectionJob
from worldline.model.settings import JanitorSettings
from worldline.observe import measures


def janitor(process: kits.Process, meter: measures.Meter, **changes: int) -> Janitor:
    settings = JanitorSettings(**{"turn_ms": 1, "round_ms": 1, "collect_rest_ms": 1, **changes})
    return janitor_of(process.universe._connection, settings, meter=meter)


async def rounds(each: Janitor, count: int = 1) -> None:
    for _ in range(count):
        while not await each.turn():
            pass


def counted(meter: measures.Meter, name: str) -> dict[tuple[str, ...], float]:
    return {of: value for (metric, of), value in meter.counters.items() if metric == name and value}


async def test_the_janitor_collects_when_it_is_time(memory_kit: Kit) -> None:
    kit = memory_kit
    process = await kit.process()
    meter = measures.Meter()
    each = janitor(process, meter, collect_ms=60_000, collect_grace_ms=30_000)
    other = janitor(process, measures.Meter(), collect_ms=60_000, collect_grace_ms=30_000)
    blobs = process.universe._connection.blobs
    of = await blobs.put(DATA)
    await rounds(each, 2)
    assert counted(meter, "worldline_collections_total") == {}, "the universe is new"
    await kit.jump(61)
    await rounds(each, 2)
    await rounds(other, 2)
    assert counted(meter, "worldline_collections_total") == {(): 1}, "and none again so soon, by any janitor"
    assert counted(meter, "worldline_collection_blobs_total") == {("condemned",): 1}
    assert await blobs.has(of)
    await kit.jump(61)
    await rounds(each)
    assert counted(meter, "worldline_collection_blobs_total") == {("condemned",): 1}, "one clock proves nothing"
    await kit.jump(61)
    await aging.older(process.engine, process.universe._connection.id, 61_000_000)
    await rounds(each)
    assert counted(meter, "worldline_collection_blobs_total") == {("condemned",): 1, ("deleted",): 1}
    assert counted(meter, "worldline_collection_deleted_bytes_total") == {("blobs",): LARGE}
    assert not await blobs.has(of)
    await each.close()
    await other.close()


async def test_a_janitor_that_is_told_not_to_collect_does_not(memory_kit: Kit) -> None:
    process = await memory_kit.process()
    meter = measures.Meter()
    each = janitor(process, meter, collect_ms=0)
    await memory_kit.jump(10**6)
    await rounds(each)
    assert counted(meter, "worldline_collections_total") == {}
    await each.close()


async def test_a_janitor_that_closes_leaves_no_mark(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection_job, "COLLECT_TURN_US", 0)
    process = await memory_kit.process()
    app = program()
    await process.universe.create("w", app)
    meter = measures.Meter()
    each = janitor(process, meter, collect_ms=1)
    [job] = [one for one in each._in_rounds if isinstance(one, CollectionJob)]
    await memory_kit.jump(1)
    opened = process.universe._connection

    async def marking() -> bool:
        read = await opened.store.engine.read(*collection_batches.reads(opened.id))
        return collection_batches.decode(opened.id, read.value(0), read.value(1)).generation.marking

    for _ in range(100):
        await each.turn()
        if job._run is not None:
            await job._run.turn()
        if await marking():
            break
    assert await marking()
    await each.close()
    assert not await marking()


@pytest.mark.parametrize(
    ("raised", "why"),
    [(errors.StoreUnavailable("down"), "store"), (collector.Overtaken("another"), "overtaken")],
)
async def test_a_collection_that_fails_is_counted_and_the_round_goes_on(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch, raised: errors.Error, why: str
) -> None:
    async def fail(_: CollectionPass) -> bool:
        raise raised

    monkeypatch.setattr(CollectionPass, "turn", fail)
    process = await memory_kit.process()
    meter = measures.Meter()
    each = janitor(process, meter, collect_ms=1)
    await memory_kit.jump(1)
    await rounds(each)
    assert counted(meter, "worldline_collections_failed_total") == {(why,): 1}
    await each.close()
