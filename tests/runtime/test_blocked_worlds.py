"""Worlds with blocked runs are found and tried at once when a process hosts code that fits, without any input."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit
from tests.worker.test_program_change import before, begun, blocks, changes, gone, held, program, status, unfit
from worldline.kernel.rows.row_records import RunStatus
from worldline.layers import ready
from worldline.model import ids
from worldline.store import kv


async def marked(universe: wl.Universe) -> int:
    """How many worlds have the hint of a blocked run."""
    found = universe._connection
    read = await found.store.engine.read(ready.read_range(found.id, priority=ready.BLOCKED, count_max=10))
    return len(read.page(0).items)


async def forget_mark(universe: wl.Universe, at: ids.Address) -> None:
    """Lose the hint of a blocked run."""
    engine = universe._connection.store.engine
    batch = kv.Batch()
    wanted = ready.get_blocked(at)
    batch.expect(wanted.key, (await engine.read(wanted)).value(0) or b"")
    ready.unmark_blocked(batch, at)
    [outcome] = await engine.commit(batch)
    assert isinstance(outcome, kv.Ok)


async def block(kit: Kit, *, killed: bool = False) -> None:
    """A world with a run that is blocked under `unfit`, and no process that hosts it."""
    app, other = program(before), program(unfit)
    await begun(kit, app)
    process = await kit.process(other)
    world = await held(process.universe)
    await blocks(world, "talk")
    assert await marked(process.universe) == 1
    if killed:
        await process.kill()
        await kit.jump(kits.LEASE_TTL_MS / 1000 + 0.1)
    else:
        await process.close()


async def until_finished(universe: wl.Universe, run: str) -> None:
    """Wait for the end of a run without a look that would take its world: as a person who looks at the journal."""
    world = universe.world("w")

    async def ended() -> bool:
        return (await status(world, run))[0] is RunStatus.FINISHED

    await aio.until(ended)


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
async def test_code_that_fits_is_tried_at_once(kit: Kit, killed: bool) -> None:
    """No input, no look at the world: hosting the code is enough."""
    await block(kit, killed=killed)
    async with kit.hosting() as client:
        async with kit.hosting(program(before)):
            await until_finished(client, "talk")
        assert await changes(client.world("w")) == 2
        assert await marked(client) == 0, "nothing is blocked any more"


async def test_code_that_does_not_fit_either_leaves_it_blocked(kit: Kit) -> None:
    await block(kit)
    async with kit.hosting() as client:
        world = client.world("w")
        async with kit.hosting(program(gone)):

            async def tried() -> bool:
                return await changes(world) == 2

            await aio.until(tried)
            assert (await status(world, "talk"))[0] is RunStatus.BLOCKED
            assert await marked(client) == 1
        async with kit.hosting(program(before)):
            await until_finished(client, "talk")
            assert await marked(client) == 0


async def test_the_same_code_leaves_the_world_where_it_is(memory_kit: Kit) -> None:
    """Nothing can have changed: a host of the code under which it is blocked does not even take the world."""
    await block(memory_kit)
    async with memory_kit.hosting(program(unfit)) as universe:
        assert universe._connection.host is not None
        worker = universe._connection.host.worlds
        await kits.begin(
            await universe.ensure("other", program(unfit)), program(unfit).workflows["steady"]("x"), id="x"
        )
        await worker._searcher.search_all()
        assert not worker.holds(await universe.world("w")._handle.address())


async def test_it_is_left_to_a_worker_with_its_code_and_taken_when_that_has_ended(kit: Kit) -> None:
    await block(kit)
    old = await kit.process(program(unfit))
    async with kit.hosting() as client:
        world = client.world("w")
        async with kit.hosting(program(before)) as new:
            assert new._connection.host is not None
            await new._connection.host.worlds._searcher.search_all()
            assert await changes(world) == 1, "a living worker has the world's code"
            await old.close()
            await until_finished(client, "talk")


async def test_a_world_that_came_with_a_blocked_run_is_marked_when_it_is_taken(kit: Kit) -> None:
    """A fork of a world with a blocked run; and one whose hint is lost."""
    await block(kit)
    async with kit.hosting(program(unfit)) as universe:
        world = await held(universe)
        fork = await world.fork("f", live=True)
        assert universe._connection.host is not None
        assert await universe._connection.host.worlds.hold(await fork._handle.address()) is not None
        assert await marked(universe) == 2
        await forget_mark(universe, await world._handle.address())
        assert await marked(universe) == 1
    async with kit.hosting(program(unfit)) as universe:
        await held(universe)
        assert await marked(universe) == 2


def test_embedded(tmp_path: Path) -> None:
    """As a user sees it: close, mend the code, open, and wait for nothing else."""
    first, second = program(before), program(unfit)

    async def main() -> None:
        async with wl.open(str(tmp_path), host=first) as universe:
            world = await universe.ensure("w", first)
            _ = await world.start(first.workflows["talk"]("talk"), id="talk")
        async with wl.open(str(tmp_path), host=second) as universe:
            await blocks(universe.world("w"), "talk")
        async with wl.open(str(tmp_path), host=program(before)), wl.open(str(tmp_path)) as client:
            await until_finished(client, "talk")

    asyncio.run(main())
