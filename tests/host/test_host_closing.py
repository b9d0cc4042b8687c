"""A host that closes leaves its work for others."""

from __future__ import annotations

import asyncio

import worldline as wl
from tests import aio
from tests.kits.kit import Kit


async def test_no_effect_begins_while_the_host_closes(memory_kit: Kit) -> None:
    """Its worlds go on for a moment, with what earlier steps had no room for; nothing of that is performed here."""
    app = wl.Program("closing")
    began: list[int] = []

    @app.effect
    async def slow(number: int) -> None:
        began.append(number)
        await asyncio.sleep(3600)

    @app.workflow
    async def many() -> None:
        await wl.gather(*[slow(number) for number in range(3_000)])

    process = await memory_kit.process(app)
    world = await process.universe.ensure("w", app)
    _ = await world.start(many())

    async def begun() -> bool:
        return bool(began)

    await aio.until(begun)
    adapter = process.host._effects
    assert adapter is not None
    await process.close()
    assert adapter.running == 0
