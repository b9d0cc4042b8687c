"""An effect whose processes die is parked in the end, also where the number of its attempts is not limited."""

from __future__ import annotations

import asyncio

import worldline as wl
from tests import aio
from tests.roles import kit as kits
from tests.roles.kit import Kit
from worldline.inspect import why as reasons
from worldline.model.work import WorkState

DEATHS = 3
SETTINGS = kits.settings(adapter={"dead_attempts_max": DEATHS})


class App:
    def __init__(self) -> None:
        self.program = app = wl.Program("p")
        self.began = asyncio.Event()
        self.deadly = True

        @app.effect(retry=wl.Retry(attempts=None, initial_delay=0.01))
        async def poison() -> str:
            self.began.set()
            if self.deadly:
                await asyncio.sleep(3600)
            return "well"

        @app.workflow
        async def takes() -> str:
            return await poison()

        self.takes = takes


async def test_dead_attempts_of_unlimited_ones_count(kit: Kit) -> None:
    app = App()
    client = await kit.process()
    world = await client.universe.ensure("w", app.program)
    starting = asyncio.ensure_future(kits.begin(world, app.takes(), id="r"))
    for _ in range(DEATHS):
        app.began.clear()
        process = await kit.process(app.program, settings=SETTINGS)
        await asyncio.wait_for(app.began.wait(), 20)
        await process.kill()
        await kit.jump(kits.LEASE_TTL_MS / 1000 + 0.1)
    await starting
    app.deadly = False
    last = await kit.process(app.program, settings=SETTINGS)
    at = await world._handle.address()

    async def parked() -> bool:
        return [each.work.state for each in await kits.opened(client.engine, at)] == [WorkState.PARKED]

    await aio.until(parked)
    [reason] = [each for each in (await reasons.why(world._handle)).reasons if each.kind == "parked"]
    assert f"the processes of {DEATHS} attempts in a row died" in reason.error
    await last.close()


async def test_attempts_that_are_given_back_do_not_count(memory_kit: Kit) -> None:
    app = App()
    client = await memory_kit.process()
    world = await client.universe.ensure("w", app.program)
    starting = asyncio.ensure_future(kits.begin(world, app.takes(), id="r"))
    for _ in range(DEATHS + 1):
        app.began.clear()
        process = await memory_kit.process(app.program, settings=SETTINGS)
        await asyncio.wait_for(app.began.wait(), 20)
        await process.close()
    await starting
    app.deadly = False
    async with memory_kit.hosting(app.program, settings=SETTINGS) as universe:
        assert await (await universe.world("w").start(app.takes(), id="r")).result(20) == "well"
