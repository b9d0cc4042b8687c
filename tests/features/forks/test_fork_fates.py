"""No operation of a fork waits for ever, also where more was open than one step settles, and whatever ends it in the
parent."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

import worldline as wl
from tests.features.forks.everything_open import Added
from tests.features.forks.forking import Shop, check, result, until
from tests.kits.kit import Kit
from worldline.base import limits
from worldline.model.journal import Kind

MANY = limits.STEP_EFFECTS_MAX + 30


class Crowd:
    """A program whose runs have more open than one step settles. Its effect answers when `gate` is open."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.gate = asyncio.Event()
        self.program = app = wl.Program("crowd")
        crowd = self

        @app.effect(name="fetch", retry=wl.Retry(attempts=1))
        async def fetch(number: int) -> int:
            crowd.calls.append(number)
            await crowd.gate.wait()
            return number

        @app.workflow(name="all")
        async def all_of_them() -> list[Any]:
            found = await wl.gather(*(fetch(each) for each in range(MANY)), return_exceptions=True)
            return [each if isinstance(each, int) else "failed" for each in found]

        self.all = all_of_them


@pytest.mark.parametrize("between", ["drop", "reissue", "share"])
async def test_a_fork_of_a_fork_that_is_not_through_gets_its_answers(memory_kit: Kit, between: Any) -> None:
    """The rest of what the first fork has inherited is its parent's: the second one looks for the answers there."""
    crowd = Crowd()
    async with memory_kit.hosting(crowd.program) as universe:
        world = await universe.ensure("alice", crowd.program)
        _ = await world.start(crowd.all(), id="r")
        await until(lambda: len(crowd.calls) == MANY)
        live = between == "reissue"
        first = await world.fork("first", effects=between, live=live)
        lineage = await first.lineage()
        assert lineage is not None

        async def is_settled() -> bool:
            return [each.kind for each in await first.journal(above=lineage.height)].count(Kind.CONTROL) > 1

        if between != "drop":
            await until(is_settled)
        else:
            await until(lambda: _height(first, lineage.height + 1))
        [begun, *_] = [each.step for each in await first.journal(above=lineage.height)]
        top = max(each.height for each in await first.journal(above=lineage.height) if each.step == begun)
        second = await first.fork("second", at=top, effects="share")
        third = await first.fork("third", at=top, effects="drop")
        crowd.gate.set()
        everything = list(range(MANY))
        assert await result(world, "r") == everything
        got = await result(second, "r")
        assert [each for each in got if each != "failed"] == [each for each in everything if got[each] != "failed"]
        if between != "drop":
            assert got == everything
            assert await result(first, "r") == everything
        assert "failed" in await result(third, "r")
        assert len(crowd.calls) == MANY * (2 if live else 1)
        await check(universe, "alice", "first", "second", "third")


async def _height(world: wl.World, height: int) -> bool:
    return (await world.head()).height >= height


async def test_a_shared_question_ends_when_the_parent_gives_it_up(memory_kit: Kit) -> None:
    shop = Shop()
    async with memory_kit.hosting(shop.program) as universe:
        bank = await universe.ensure("bank", shop.program)
        await bank.pause()
        world = await universe.ensure("alice", shop.program)
        _ = await world.start(shop.asks(), id="asks")
        fork = await world.fork("fork", effects="share")
        await (await world.attach("asks")).cancel("no")
        with pytest.raises(wl.RunFailed, match="has given it up"):
            await result(fork, "asks")
        await check(universe, "alice", "fork")


@pytest.mark.parametrize("kind", ["asks", "buy"])
async def test_what_a_person_answers_in_the_parent_is_shared(memory_kit: Kit, kind: str) -> None:
    shop = Shop()
    async with memory_kit.hosting(shop.program) as universe:
        bank = await universe.ensure("bank", shop.program)
        await bank.pause()
        world = await universe.ensure("alice", shop.program)
        _ = await world.start(shop.asks() if kind == "asks" else shop.buy("a"), id="r")
        fork = await world.fork("fork", effects="share")
        answered: Any = 11 if kind == "asks" else "by hand"
        run = await world.attach("r")
        with pytest.raises(wl.NotFound):
            await run.answer(9, answered)
        await run.answer(1, answered)
        mine = await result(world, "r")
        assert await result(fork, "r") == mine
        assert (mine if kind == "asks" else mine[0]) == answered
        await check(universe, "alice", "fork")


@pytest.mark.parametrize("effects", ["drop", "reissue", "share", "script"])
async def test_a_run_that_is_cancelled_before_all_is_settled_leaves_nothing(memory_kit: Kit, effects: Any) -> None:
    crowd = Crowd()
    async with memory_kit.hosting(crowd.program) as universe:
        world = await universe.ensure("alice", crowd.program)
        _ = await world.start(crowd.all(), id="r")
        await until(lambda: len(crowd.calls) == MANY)
        await world.pause()
        script = [{"effect": "fetch", "answer": 7}] if effects == "script" else None
        fork = await world.fork("fork", effects=effects, script=script)
        run = await fork.attach("r")
        await run.cancel("no")  # waits in its inbox, or comes between its first steps
        with contextlib.suppress(wl.errors.Failed):  # it may have had all its answers before
            await result(fork, "r")
        await check(universe, "fork")


@pytest.mark.parametrize("effects", ["drop", "reissue", "share"])
async def test_work_is_settled_in_the_order_in_which_it_was_asked_for(memory_kit: Kit, effects: Any) -> None:
    """A worker that restores the world and a proof from its birth do so in one order."""
    shop = Shop()
    async with memory_kit.hosting(shop.program) as universe:
        world = await universe.ensure("alice", shop.program)
        for number, run in enumerate(("z", "m", "a")):
            _ = await world.start(shop.buy(run), id=run)
            await until(lambda number=number: len(shop.calls) > number)  # type: ignore[misc]
        height = (await world.head()).height
        fork = await world.fork("fork", effects=effects)
        await until(lambda: _height(fork, height + 1))
        await check(universe, "alice", "fork")
        await (await world.send(Added(1))).applied()
        if effects != "share":
            await world.revert(height, effects=effects)
            await check(universe, "alice")
