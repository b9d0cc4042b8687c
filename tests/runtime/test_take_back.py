"""Claims of a dead process are due again at once: all of them, however many a world has open."""

from __future__ import annotations

import asyncio

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit
from worldline.model import ids
from worldline.model.work import WorkState
from worldline.runtime import lease_calls as world_lease

EFFECTS = 7


@pytest.mark.parametrize("page", [1, 3, 7, 256])
async def test_claims_are_taken_back_page_by_page(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    app, gate = wl.Program("p"), asyncio.Event()

    @app.effect
    async def touch(number: int) -> int:
        await gate.wait()
        return number

    @app.workflow
    async def go() -> int:
        return len(await wl.gather(*(touch(number) for number in range(EFFECTS))))

    process = await memory_kit.process(app)
    world = await process.universe.ensure("w", app)
    await kits.begin(world, go(), id="r")
    at, engine = await world._handle.address(), await memory_kit.engine()

    async def states() -> list[WorkState]:
        return [each.work.state for each in await kits.opened(engine, at)]

    async def claimed() -> bool:
        return await states() == [WorkState.CLAIMED] * EFFECTS

    await aio.until(claimed)
    await process.kill()
    monkeypatch.setattr(world_lease, "CLAIMS_PAGE", page)
    asked: list[ids.WorkerId] = []

    def is_dead(worker: ids.WorkerId) -> bool:
        asked.append(worker)
        return True

    assert await world_lease.take_back_claims(engine, memory_kit.env, at, is_dead) == EFFECTS
    assert await states() == [WorkState.WAITING] * EFFECTS
    assert len(asked) == 1, "one process is asked after once"
    assert await world_lease.take_back_claims(engine, memory_kit.env, at, is_dead) == 0
    await memory_kit.aclose()
