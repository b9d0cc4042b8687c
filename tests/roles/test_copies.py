"""Drawn histories (`travels`) exported, imported into another kind of store, and run on there: every digest, row, state
and snapshot is that of the model, and `verify` and `prove` hold.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import aio
from tests.roles import conftest, kit, travels
from tests.roles.test_travels import SETTINGS, histories
from tests.roles.travels import Model, Tree
from worldline.base import errors
from worldline.inspect import doctor, prove, verify
from worldline.layers.stored import saved_state
from worldline.model.world import Status
from worldline.roles import reader, restore

HISTORIES = 2
ROUTES = [("memory", "lmdb"), ("lmdb", "postgres"), ("postgres", "memory")]


@pytest.mark.parametrize("route", ROUTES, ids="-".join)
def test_a_copy_is_what_the_model_says(route: tuple[str, str], tmp_path: Path) -> None:
    numbers = iter(range(10**9))

    @hypothesis.settings(
        max_examples=int(os.environ.get("WORLDLINE_COPIES", HISTORIES)), phases=[hypothesis.Phase.generate]
    )  # no two lives are the same
    @hypothesis.given(histories())
    def lives(acts: list[Any]) -> None:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        stores = [conftest.make(engine, folder / f"{place}") for place, engine in enumerate((*route, "memory"))]
        aio.run(life(stores, folder, acts))

    lives()


async def life(stores: list[kit.Kit], folder: Path, acts: list[Any]) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for store in stores:
            await stack.enter_async_context(contextlib.aclosing(store))
        process = await stores[0].process(travels.app, settings=SETTINGS)
        tree = Tree(process)
        await tree.begin()
        await tree.live(acts)
        await tree.stop()
        models = [await travels.model_of(branch) for branch in tree.branches]
        files = [folder / f"{number}.world" for number in range(len(models))]
        for model, file in zip(models, files, strict=True):
            written = await model.branch.world.export(file)
            assert (written.height, written.chain) == (model.heads[-1].height, model.heads[-1].chain.hex())
        await process.close()
        there = await stores[1].process(travels.app, settings=SETTINGS)
        for model, file in zip(models, files, strict=True):
            world = await there.universe.import_world(file)
            await check_copy(there, world, model)
            with pytest.raises(errors.Closed):
                await world.send(travels.Ping(1))
            assert (await there.universe.import_world(file)).name == world.name, "the same import again is the same"
        assert (await doctor.examine(there.universe._connection, repair=False)).findings == []
        again = await go_on(there, models[-1], folder / "again.world")
        await there.close()
        last = await stores[2].process(travels.app, settings=SETTINGS)
        world = await last.universe.import_world(folder / "again.world", name="last", live=False)
        assert (await world.head()).chain.hex() == again
        await check_proved(last, "last")
        await last.close()


async def check_copy(there: kit.Process, world: Any, model: Model) -> None:
    connection, engine = there.universe._connection, there.engine
    assert (await world.describe()).status is Status.ARCHIVED
    assert await world.head() == model.heads[-1]
    assert await world.lineage() is not None
    entries = await world.journal(limit=1_000_000)
    loaded = await restore.load_referenced(connection.blobs, entries)
    assert [restore.filled(entry, loaded) for entry in entries] == model.entries
    for step in range(1, len(model.heads), 3):
        rows, head = await world._handle.rows_at(model.heads[step].height)
        assert (dict(rows.items()), head) == (model.rows[step], model.heads[step])
    at = await world._handle.address()
    kept = await verify.records(connection, await reader.line_of(engine, at))
    assert kept[0].step == 0
    for record in kept:
        saved = await saved_state.load(connection.blobs, record.root)
        assert (saved.state, dict(saved.rows())) == (model.heads[record.step].state, model.rows[record.step])
    await check_proved(there, world.name)


async def check_proved(process: kit.Process, name: str) -> None:
    connection = process.universe._connection
    handle = process.universe.world(name)._handle
    head = await process.universe.world(name).head()
    verified = await verify.verify(connection, await handle.address())
    assert (verified.chain, verified.height) == (head.chain.hex(), head.height)
    proof = await prove.prove(handle, programs=[travels.app])
    assert proof.holds, proof
    assert proof.unverifiable == []
    assert (proof.chain, proof.steps) == (head.chain.hex(), head.step)


async def go_on(there: kit.Process, model: Model, file: Path) -> str:
    """Let a copy run, fork it where it was not its own history, and export it once more."""
    world = there.universe.world(model.branch.world.name)
    await world.resume()
    total = await world.ask(travels.Count(1), timeout=travels.SECONDS)
    assert total == (await world.state(travels.Heard)).total
    await world.run(travels.follow([["draw"], ["sleep", 1]]), id="behind the copy", timeout=travels.SECONDS)
    middle = model.heads[-1].height // 2
    for name, live in (("fork-dry", False), ("fork-live", True)):
        fork = await world.fork(name, at=middle, live=live)
        await fork.ask(travels.Count(1), timeout=travels.SECONDS)
        await check_proved(there, name)
    await world.pause()
    await check_proved(there, world.name)
    return (await world.export(file)).chain
