"""A world goes back to what it was: its journal goes on, what is open now is closed, what was open then is settled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import worldline as wl
from tests.features.forks.everything_open import Added, Balance
from tests.features.forks.forking import Shop, check, result, until
from tests.kits.kit import Kit
from worldline.inspect import entry_text
from worldline.model.journal import Kind


async def test_the_state_is_what_it_was_and_the_journal_goes_on(kit: Kit) -> None:
    shop = Shop()
    async with kit.hosting(shop.program) as universe:
        world = await universe.ensure("alice", shop.program)
        for cents in (1, 2, 4):
            await (await world.send(Added(cents))).applied()
        before = await world.head()
        done = await world.revert(2)
        assert (done.step, done.height, done.left) == (2, 2, [])
        assert (await world.head()).height > before.height
        assert (await world.state(shop.Till)).cents == 3
        assert (await world.state(shop.Till, at=before.height)).cents == 7, "nothing of the history is lost"
        await world.send(Added(8))
        assert await world.ask(Balance()) == 11
        again = await world.revert(before.height)
        assert again.height == before.height
        assert await world.ask(Balance()) == 7
        await check(universe, "alice")
    async with kit.hosting(shop.program) as universe:
        assert await universe.world("alice").ask(Balance()) == 7
        await check(universe, "alice")


@pytest.mark.parametrize("effects", ["drop", "reissue"])
async def test_open_work_of_both_times_is_settled(kit: Kit, effects: Any) -> None:
    shop = Shop()
    async with kit.hosting(shop.program) as universe:
        world = await universe.ensure("alice", shop.program)
        _ = await world.start(shop.buy("then"), id="then")
        _ = await world.start(shop.parent(), id="parent")
        await until(lambda: len(shop.calls) == 1)
        height = (await world.head()).height
        _ = await world.start(shop.buy("now"), id="now")
        await until(lambda: len(shop.calls) == 2)
        done = await world.revert(height, effects=effects)
        assert [(each.kind, each.name, each.run) for each in done.left] == [("effect", "charge", "now")]
        assert sorted([run.id for run in await world.runs() if "/" not in run.id]) == ["parent", "then"]
        if effects == "reissue":
            await until(lambda: len(shop.calls) == 3)
            shop.gate.set()
            assert (await result(world, "then"))[0] == "paid then"
        else:
            with pytest.raises(
                wl.RunFailed, match=f"it was open at step {done.step}, to which this world was reverted"
            ):
                await result(world, "then")
        assert await result(world, "parent") == "child slept"
        assert await (await world.start(shop.waits(), id="now")).status() is wl.RunStatus.RUNNING  # its id is free
        await check(universe, "alice")


async def test_what_was_open_is_closed_over_as_many_steps_as_needed(memory_kit: Kit) -> None:
    app = wl.Program("many")

    @app.workflow
    async def sleep(seconds: int) -> int:
        await wl.sleep(seconds)
        return seconds

    @app.workflow
    async def sleeps(count: int) -> int:
        return sum(await wl.gather(*(sleep(10_000 + number) for number in range(count))))

    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("alice", app)
        _ = await world.start(sleeps(150), id="then")
        height = (await world.head()).height
        _ = await world.start(sleeps(400), id="now")
        await world.revert(height)
        assert [run.id for run in await world.runs() if "/" not in run.id] == ["then"]
        _ = await world.start(sleeps(1), id="later")

        async def whole() -> bool:
            machine = await world._handle.machine()
            return not machine.unfinished

        await until(whole)
        await check(universe, "alice")


async def test_a_busy_world_is_tried_again_and_a_moved_one_is_not_mixed_up(memory_kit: Kit) -> None:
    shop = Shop()
    async with memory_kit.hosting(shop.program) as universe:
        world = await universe.ensure("alice", shop.program)
        for _ in range(5):
            await (await world.send(Added(1))).applied()
        stop = asyncio.Event()

        async def busy() -> None:
            while not stop.is_set():
                await (await world.send(Added(100))).applied()
                await asyncio.sleep(0.005)

        task = asyncio.create_task(busy())
        try:
            await world.revert(3)
        finally:
            stop.set()
            await task
        cents = await world.ask(Balance())
        assert cents % 100 == 3, "the state is that of the height, and what came after"
        await check(universe, "alice")


async def test_a_dry_fork_stays_dry(memory_kit: Kit) -> None:
    shop = Shop()
    async with memory_kit.hosting(shop.program) as universe:
        world = await universe.ensure("alice", shop.program)
        fork = await world.fork("fork", script=[{"effect": "charge", "answer": "scripted"}])
        await fork.ask(Balance())
        height = (await fork.head()).height
        assert (await fork.run(shop.buy("a"), id="a"))[0] == "scripted"
        await fork.revert(height)
        assert (await fork.run(shop.buy("b"), id="a"))[0] == "scripted"
        assert not shop.calls
        said = [entry_text.line(each) for each in await fork.journal() if each.kind in (Kind.CONTROL, Kind.REVERTED)]
        assert said[0] == "command=forked of=alice height=0 effects=drop live=false script=1"
        assert [each for each in said if each.startswith("to_step=")] == [f"to_step=2 to_height={height}"]
        await check(universe, "alice", "fork")


@pytest.mark.parametrize(
    ("to", "effects", "said"),
    [(-1, "drop", "from 0 on"), ("x", "drop", "from 0 on"), (99, "drop", "no height 99"), (0, "share", "one of drop")],
)
async def test_what_is_no_time_to_go_back_to_is_said(memory_kit: Kit, to: Any, effects: Any, said: str) -> None:
    shop = Shop()
    async with memory_kit.hosting(shop.program) as universe:
        world = await universe.ensure("alice", shop.program)
        with pytest.raises(wl.BadInput, match=said):
            await world.revert(to, effects=effects)
