"""A caller that waits for a run gets an error if the world is reverted to before its start, wherever it waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import worldline as wl
from tests.features.forks.everything_open import Added
from tests.features.forks.forking import SECONDS, Shop, until
from tests.kits.kit import Kit, begin
from worldline.client import world_answers
from worldline.client.run_handle import ended
from worldline.model.journal import Kind


async def waiting(world: wl.World, run_id: str) -> asyncio.Task[Any]:
    """A task that waits for a run's end, and has begun to."""
    run = await world.attach(run_id)
    task = asyncio.ensure_future(run.result())
    await asyncio.sleep(0.05)
    assert not task.done()
    return task


async def gone(task: asyncio.Task[Any], *, run: str, to: int, height: int) -> None:
    async with asyncio.timeout(SECONDS):
        with pytest.raises(wl.errors.RunReverted, match=f"run '{run}' is gone: at height") as caught:
            await task
    assert (caught.value.to, caught.value.height) == (to, height)
    assert caught.value.code == "reverted"
    assert f"worldline fork alice NAME --at {height - 1}" in str(caught.value)


async def reverted_at(world: wl.World, at: int) -> int:
    """Where the journal says so: in the step whose answer stands at a height."""
    return next(each.height for each in await world.journal(above=at - 3) if each.kind is Kind.REVERTED)


async def test_here_and_in_another_process(kit: Kit) -> None:
    shop = Shop()
    host, client = await kit.process(shop.program), await kit.process()
    world = await host.universe.ensure("alice", shop.program)
    there = client.universe.world("alice")
    await begin(world, shop.waits(), id="before")
    to = (await world.head()).height
    tasks: list[asyncio.Task[Any]] = [asyncio.ensure_future(each.run(shop.waits(), id="r")) for each in (world, there)]
    await until(lambda: _has(world, "r"))
    tasks += [await waiting(each, "r") for each in (world, there)]
    kept = [await waiting(each, "before") for each in (world, there)]
    done = await world.revert(to)
    height = await reverted_at(world, done.at)
    for task in tasks:
        await gone(task, run="r", to=to, height=height)
    await world.revert(done.at)  # to after the start of "before", and to a state that has it
    await world.send(Added(5))
    async with asyncio.timeout(SECONDS):
        assert [await task for task in kept] == [5, 5], "what was there goes on"
        assert await there.run(shop.waits(), id="before") == 5
    await host.close()
    await client.close()


async def _has(world: wl.World, run_id: str) -> bool:
    return any(run.id == run_id for run in await world.runs())


async def test_another_run_of_the_same_id_is_another_run(memory_kit: Kit) -> None:
    shop = Shop()
    async with memory_kit.hosting(shop.program) as universe:
        world = await universe.ensure("alice", shop.program)
        first = (await world.head()).height
        await begin(world, shop.buy("a"), id="r")
        second = (await world.head()).height
        done = await world.revert(first)
        await begin(world, shop.buy("b"), id="r")
        task = await waiting(world, "r")
        again = await world.revert(second)
        assert again.at > done.at
        await gone(task, run="r", to=second, height=await reverted_at(world, again.at))


async def test_a_run_that_had_ended_there_has_its_result(memory_kit: Kit) -> None:
    """The run waits for nothing any more where the world went back to: it had been started again since then."""
    shop = Shop()
    shop.gate.set()
    async with memory_kit.hosting(shop.program) as universe:
        world = await universe.ensure("alice", shop.program)
        start = (await world.head()).height
        paid = await world.run(shop.buy("a"), id="r")
        ended = (await world.head()).height
        await world.revert(start)
        shop.gate.clear()
        await begin(world, shop.buy("a"), id="r")
        task = await waiting(world, "r")
        await world.revert(ended)
        async with asyncio.timeout(SECONDS):
            assert await task == paid


async def test_a_revert_before_the_start_concerns_no_run(memory_kit: Kit) -> None:
    """A caller asks for the end before it starts the run, and is told of a revert in between."""
    shop = Shop()
    async with memory_kit.hosting(shop.program) as universe:
        world = await universe.ensure("alice", shop.program)
        await (await world.send(Added(1))).applied()
        at, wanted = await world._handle.address(), await world._wanted(shop.parent(), "r")
        with world_answers.expecting(universe._connection, at, Kind.RUN_FINISHED, "r") as told:
            await world.revert(0)
            assert told is not None
            assert told.done()
            standing, since = await world._start(wanted)
            async with asyncio.timeout(SECONDS):
                end = await ended(world._handle, standing, since=since, expected=told)
        assert end.standing.status is wl.RunStatus.FINISHED
