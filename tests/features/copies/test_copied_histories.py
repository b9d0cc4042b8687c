"""Drawn histories (`travels`) with forks and reverts, compacted and collected; exported, imported into another kind of
store, collected there and run on; and the store that they are in, backed up and restored into a third one. Every
digest, row, state and snapshot is that of the model, and `verify` and `prove` hold.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import worldline as wl
from tests import aio, options
from tests.features.compaction import compacting
from tests.features.copies.backing_up import bare
from tests.features.forks.test_travels import histories
from tests.kits import fixtures, kit, travels
from tests.kits.travels import Model, Tree
from worldline.base import errors
from worldline.features.collection import collector
from worldline.features.copies import backup_calls
from worldline.features.proofs import calls as proof_calls
from worldline.inspect import doctor, verify
from worldline.layers.history import saved_state
from worldline.model.world_records import Status
from worldline.runtime import world_reader, world_restore

ROUTES = [("memory", "lmdb"), ("lmdb", "postgres"), ("postgres", "memory")]
SETTINGS = kit.settings(
    worker={
        "snapshot_idle_ms": 30,
        "snapshot_entries": 25,
        "segment_entries": 10**9,
        "segment_margin": 0,
        "snapshots_kept": 1,
    }
)


@pytest.mark.parametrize("route", ROUTES, ids="-".join)
def test_a_copy_is_what_the_model_says(route: tuple[str, str], tmp_path: Path) -> None:
    numbers = iter(range(10**9))

    # No two lives are the same.
    @hypothesis.settings(max_examples=options.number("copies"), phases=[hypothesis.Phase.generate])
    @hypothesis.given(histories())
    def lives(acts: list[Any]) -> None:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        stores = [fixtures.make(engine, folder / f"{place}") for place, engine in enumerate((*route, "memory", "lmdb"))]
        aio.run(life(stores, folder, acts))

    lives()


async def life(stores: list[kit.Kit], folder: Path, acts: list[Any]) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for store in stores:
            await stack.enter_async_context(contextlib.aclosing(store))
        models, files = await lived(stores[0], folder, acts)
        there = await stores[1].process(travels.app, settings=SETTINGS)
        for model, file in zip(models, files, strict=True):
            world = await there.universe.import_world(file)
            await check_copy(there, world, model)
            with pytest.raises(errors.Closed):
                await world.send(travels.Ping(1))
            assert (await there.universe.import_world(file)).name == world.name, "the same import again is the same"
        await collect(there)
        for model in models:
            await check_copy(there, there.universe.world(model.branch.world.name), model)
        assert (await doctor.examine(there.universe._connection, repair=False)).findings == []
        again = await go_on(there, models[-1], folder / "again.world")
        await there.close()
        last = await stores[2].process(travels.app, settings=SETTINGS)
        world = await last.universe.import_world(folder / "again.world", name="last", live=False)
        assert (await world.head()).chain.hex() == again
        await check_proved(last, "last")
        await last.close()
        await check_restored(stores[0], stores[3], folder, models)


async def lived(store: kit.Kit, folder: Path, acts: list[Any]) -> tuple[list[Model], list[Path]]:
    """Live a history, some of its worlds compacted and the store collected, and export all worlds."""
    process = await store.process(travels.app, settings=SETTINGS)
    tree = Tree(process)
    await tree.begin()
    await tree.live(acts)
    for branch in tree.branches[::2]:
        await branch.world.ask(travels.Count(0), timeout=travels.SECONDS)  # so that it is held here
        await branch.world.snapshot()
        await compacting.compact(process, branch.world)
    await tree.stop()
    models = [await travels.model_of(branch) for branch in tree.branches]
    await collect(process)
    files = [folder / f"{number}.world" for number in range(len(models))]
    for model, file in zip(models, files, strict=True):
        written = await model.branch.world.export(file)
        assert (written.height, written.chain) == (model.heads[-1].height, model.heads[-1].chain.hex())
    await process.close()
    return models, files


async def collect(process: kit.Process) -> None:
    """Nothing is spared that nothing refers to."""
    universe = process.universe._connection
    await collector.collect(process.engine, universe.store.env, universe.blobs, universe.id, grace_ms=0)


async def check_copy(there: kit.Process, world: wl.World, model: Model) -> None:
    connection, engine = there.universe._connection, there.engine
    assert (await world.describe()).status is Status.ARCHIVED
    await check_states(there, world, model)
    at = await world._handle.address()
    for record in await verify.records(connection, await world_reader.line_of(engine, at)):
        saved = await saved_state.load(connection.blobs, record.root)
        assert (saved.state, dict(saved.rows())) == (model.heads[record.step].state, model.rows[record.step])
    await check_proved(there, world.name)


async def check_states(there: kit.Process, world: wl.World, model: Model) -> None:
    assert await world.head() == model.heads[-1]
    entries = await world.journal(limit=1_000_000)
    loaded = await world_restore.load_referenced(there.universe._connection.blobs, entries)
    assert [world_restore.filled(entry, loaded) for entry in entries] == model.entries
    for step in (*range(1, len(model.heads), 3), len(model.heads) - 1):
        height = model.heads[step].height
        with contextlib.suppress(wl.errors.NotRetained):  # where what steps changed was dropped
            rows, head = await world._handle.rows_at(height)
            assert (dict(rows.items()), head) == (model.rows[step], model.heads[step])
            continue
        assert height < model.heads[-1].height


async def check_proved(process: kit.Process, name: str) -> None:
    connection = process.universe._connection
    handle = process.universe.world(name)._handle
    head = await process.universe.world(name).head()
    verified = await verify.verify(connection, await handle.address())
    assert (verified.chain, verified.height) == (head.chain.hex(), head.height)
    proof = await proof_calls.prove(handle, programs=[travels.app])
    assert proof.holds, proof
    assert proof.chain == head.chain.hex()
    if not verified.states_above:
        assert (proof.unverifiable, proof.steps) == ([], head.step)


async def go_on(there: kit.Process, model: Model, file: Path) -> str:
    """Let a copy run, fork it where it was not its own history, and export it once more."""
    world = there.universe.world(model.branch.world.name)
    await world.resume()
    total = await world.ask(travels.Count(1), timeout=travels.SECONDS)
    assert total == (await world.state(travels.Heard)).total
    await world.run(travels.follow([["draw"], ["sleep", 1]]), id="behind the copy", timeout=travels.SECONDS)
    middle = model.heads[-1].height // 2
    for name, live in (("fork-dry", False), ("fork-live", True)):
        with contextlib.suppress(wl.errors.NotRetained):
            fork = await world.fork(name, at=middle, live=live)
            await fork.ask(travels.Count(1), timeout=travels.SECONDS)
            await fork.pause()
            await check_proved(there, name)
    await world.pause()
    await check_proved(there, world.name)
    return (await world.export(file)).chain


async def check_restored(here: kit.Kit, there: kit.Kit, folder: Path, models: list[Model]) -> None:
    """The whole store in another one: the same worlds, with the ids that they had."""
    await backup_calls.backup(await bare(here), str(folder / "backups"))
    await backup_calls.restore(str(folder / "backups"), await bare(there))
    process = await there.process(travels.app, settings=SETTINGS)
    await collect(process)
    for model in models:
        world = process.universe.world(model.branch.world.name)
        assert await world._handle.address() == model.branch.at
        await check_states(process, world, model)
        await check_proved(process, world.name)
    assert (await doctor.examine(process.universe._connection, repair=False)).findings == []
    await process.close()
