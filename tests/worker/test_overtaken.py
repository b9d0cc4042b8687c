"""A holder whose commit has no answer, and whose world another host has moved on: an input is never taken twice, and
never said to be taken if it was not. None of them has a client id.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Around, Kit
from tests.kits.sums import Add, AddUp, program
from worldline.base import errors
from worldline.keys import journal as journal_keys
from worldline.model import ids
from worldline.store import kv


class Overtaken(Around):
    """Loses the answer to the next step of a world, and is out of reach until `back` is set."""

    def __init__(self, engine: kv.Engine) -> None:
        super().__init__(engine)
        self.at: ids.Address | None = None  # whose next step it is
        self.applied = True
        self.unreadable = False  # when it is back, the journal cannot be read
        self.lost = asyncio.Event()
        self.back = asyncio.Event()

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        await self._reach()
        if self.unreadable and self.at is not None and kv.Get(journal_keys.head_key(self.at)) in requests:
            raise errors.StoreUnavailable("scripted")
        return await super().read(*requests)

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        await self._reach()
        ours = self.at is not None and any(journal_keys.head_key(self.at) in batch.puts for batch in batches)
        if not ours or self.lost.is_set():
            return await super().commit(*batches)
        if self.applied:
            await super().commit(*batches)
        self.lost.set()
        return [kv.CommitUnknown("scripted") for _ in batches]

    async def _reach(self) -> None:
        if self.lost.is_set():
            await self.back.wait()


async def overtaken(kit: Kit, app: wl.Program, *, applied: bool) -> tuple[wl.World, Overtaken, kits.Process]:
    """A world held by a host whose next step will have no answer, and another host."""
    made: list[Overtaken] = []

    def wrap(engine: Any) -> Overtaken:
        made.append(Overtaken(engine))
        return made[-1]

    first = await kit.process(app, wrap=wrap)
    world = await first.universe.ensure("w", app)
    assert await world.ask(AddUp(1), timeout=20) == 1
    made[0].at, made[0].applied = await world._handle.address(), applied
    return world, made[0], await kit.process(app)


async def overtake(kit: Kit, engine: Overtaken, second: kits.Process) -> None:
    """The other host takes the world over and makes a step, then the first is back."""
    await asyncio.wait_for(engine.lost.wait(), 20)
    await kit.jump(kits.LEASE_TTL_MS / 1000 + 0.2)
    await second.universe.world("w").ask(AddUp(1000), timeout=20)
    engine.back.set()


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
async def test_a_send_is_taken_once(kit: Kit, applied: bool) -> None:
    app = program()
    world, engine, second = await overtaken(kit, app, applied=applied)
    sending = asyncio.ensure_future(world.send(Add(10)))
    await overtake(kit, engine, second)
    height = await asyncio.wait_for((await asyncio.wait_for(sending, 30)).applied(), 20)
    assert await second.universe.world("w").ask(AddUp(0), timeout=20) == 1011
    taken = [each for each in await kits.entries(second.universe.world("w")) if each.height == height]
    assert b"Add" in taken[0].payload


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
async def test_an_ask_is_taken_once_and_answered(kit: Kit, applied: bool) -> None:
    app = program()
    world, engine, second = await overtaken(kit, app, applied=applied)
    asking = asyncio.ensure_future(world.ask(AddUp(10)))
    await overtake(kit, engine, second)
    assert await asyncio.wait_for(asking, 30) == (11 if applied else 1011)
    assert await second.universe.world("w").ask(AddUp(0), timeout=20) == 1011


async def test_what_cannot_be_found_out_is_said_to_be_uncertain(memory_kit: Kit) -> None:
    app = program()
    world, engine, second = await overtaken(memory_kit, app, applied=True)
    engine.unreadable = True
    sending = asyncio.ensure_future(world.send(Add(10)))
    await overtake(memory_kit, engine, second)
    with pytest.raises(errors.StoreUncertain):
        await asyncio.wait_for(sending, 30)
    assert await second.universe.world("w").ask(AddUp(0), timeout=20) == 1011


async def test_equal_inputs_at_equal_heights_are_told_apart(memory_kit: Kit) -> None:
    """The other host takes an input of the same bytes at the same height and time: it is not the first one's."""
    app = program()
    world, engine, second = await overtaken(memory_kit, app, applied=False)
    time_us = memory_kit.env.wall_us()
    memory_kit.env.wall_us = lambda: time_us  # type: ignore[method-assign]
    sending = asyncio.ensure_future(world.send(Add(10)))
    await asyncio.wait_for(engine.lost.wait(), 20)
    memory_kit.env.wall_us = lambda: time_us + 5_000_000  # type: ignore[method-assign]
    at = await world._handle.address()

    async def taken() -> bool:
        return await second.host.worlds.hold(at) is not None

    await aio.until(taken)
    memory_kit.env.wall_us = lambda: time_us  # type: ignore[method-assign]
    await asyncio.wait_for(second.universe.world("w").send(Add(10)), 20)
    engine.back.set()
    await asyncio.wait_for(sending, 30)
    assert await second.universe.world("w").ask(AddUp(0), timeout=20) == 21
