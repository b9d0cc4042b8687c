"""A hint that was lost: what it told of is found within `scan_ms`, however many worlds there are. In virtual time."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from tests.kits import sums
from tests.worker import test_search as kit
from worldline.api.universe_api import Universe
from worldline.client.connection import DEFAULT_UNIVERSE, Connection, find_universe
from worldline.host.feature_list import FEATURES
from worldline.host.process import Role
from worldline.layers import store_format as formats
from worldline.model.settings import JanitorSettings, Settings, WorkerSettings
from worldline.runtime import store_opening
from worldline.runtime.universes import world_sweep
from worldline.sim.runtime.sim_env import SimEnv
from worldline.sim.runtime.sim_loop import SimLoop
from worldline.store.objects import memory_objects
from worldline.worker import world_search

SCAN_MS = 1_000
WORLDS = 400
PAGE = 20
LATE_US = 20_000  # a cycle, and the looks that find the result


def test_found_within_a_scan_however_many_worlds_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty pages of worlds, one after the other looked into in the time of one scan, and not oftener."""
    monkeypatch.setattr(world_search, "PAGE", PAGE)
    pages = 0
    sweep = world_search.Searcher.sweep

    async def counted(self: world_search.Searcher) -> None:
        nonlocal pages
        pages += 1
        await sweep(self)

    monkeypatch.setattr(world_search.Searcher, "sweep", counted)
    loop = SimLoop("lost hints")

    async def main() -> tuple[list[int], float]:
        universe, names = await hosting(loop)
        await asyncio.sleep(3 * SCAN_MS / 1000)
        took = [await found_after(loop, universe, name) for name in (names[0], names[137], names[-1])]
        before, began_us = pages, loop.now_us
        await asyncio.sleep(10 * SCAN_MS / 1000)
        each_scan = (pages - before) / ((loop.now_us - began_us) / (SCAN_MS * 1000))
        await universe._connection.close()
        return took, each_scan

    try:
        took, each_scan = loop.run(main(), seconds=3_600)
    finally:
        loop.finish()
    assert max(took) <= SCAN_MS * 1000 + LATE_US, took
    assert 0.95 * WORLDS / PAGE <= each_scan <= 1.2 * WORLDS / PAGE


async def hosting(loop: SimLoop) -> tuple[Universe, list[str]]:
    env = SimEnv(loop, "store")
    engine = await store_opening.open_engine("memory://", env, create=True)
    await formats.ensure(engine, env, create=True)
    store = store_opening.Store("memory://", engine, memory_objects.MemoryObjects(env), env, FEATURES)
    found = await find_universe(store, DEFAULT_UNIVERSE, create=True)
    app = sums.program()
    client = Universe(Connection(store, found, DEFAULT_UNIVERSE, [], Settings()))
    names = [f"w{number}" for number in range(WORLDS)]
    for name in names:
        await client.create(name, app)
    settings = Settings(worker=WorkerSettings(scan_ms=SCAN_MS), janitor=JanitorSettings(prove_ms=0))
    connection = Connection(store, found, DEFAULT_UNIVERSE, [app], settings, roles=[Role.WORLDS])
    connection.start()
    return Universe(connection), names


async def found_after(loop: SimLoop, universe: Universe, name: str) -> int:
    """How long it takes until an input without a hint is in the journal of its world, in microseconds."""
    world = universe.world(name)
    height = (await world.head()).height
    await kit.enqueue_silently(universe, await world._handle.address(), 1)
    began_us = loop.now_us
    async for _ in world.follow(above=height):
        break
    return loop.now_us - began_us


@pytest.mark.parametrize(("pages", "page_us"), [(1, 10), (2, 10), (50, 10), (50, 9_000), (50, 40_000)])
def test_pace(pages: int, page_us: int) -> None:
    """A round takes one period, unless that is not enough with a rest after each page that is as long."""
    period_us = 1_000_000
    pace = world_sweep.Pace(period_us)
    now_us, begins = 0, []
    for number in range(5 * pages):
        begins.append(now_us)
        is_over = number % pages == pages - 1
        now_us = pace.next_us(began_us=now_us, now_us=now_us + page_us, is_over=is_over)
    rounds: list[Any] = [begins[start] for start in range(0, len(begins), pages)]
    least_us = 2 * pages * page_us
    for earlier, later in itertools.pairwise(rounds):  # the first, too
        assert later - earlier == max(period_us, least_us)
