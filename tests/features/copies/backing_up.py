"""Backups in tests: a store without a universe, and a store with worlds in it."""

from __future__ import annotations

from tests.features.copies.test_world_files import Add, app
from tests.kits import kit
from worldline.host.feature_list import FEATURES
from worldline.layers import store_format as formats
from worldline.runtime import store_opening


async def bare(store: kit.Kit, wrap: kit.Wrap = lambda engine: engine) -> store_opening.Store:
    """The store as a backup sees it, and a restore: without a universe."""
    engine = await store.engine()
    await formats.ensure(engine, store.env, create=True)
    bodies = await store._bodies()
    return store_opening.Store(
        store.url, wrap(engine), bodies, store.env, FEATURES, in_store_bytes_max=store.in_store_bytes_max
    )


async def filled(store: kit.Kit, *, worlds: int = 3) -> kit.Process:
    process = await store.process(app)
    for number in range(worlds):
        world = await process.universe.create(f"w{number}", app)
        await (await world.send(Add(number, "x" * 30_000 + str(number)))).applied(20)
        await world.snapshot()
    return process
