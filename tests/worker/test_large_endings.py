"""Ending a run with more open work than fits into one commit."""

from __future__ import annotations

import asyncio

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit
from worldline.inspect import queue_check

MANY = 12_000
LEASED = kits.settings(worker={"lease_ttl_ms": 3_600_000}, adapter={"claim_ttl_ms": 3_600_000, "renew_ms": 1_000_000})
LONG = "a_name_as_long_as_names_may_be_so_that_every_key_and_every_entry_that_has_it_in_it_is_large"


@pytest.mark.parametrize("ending", ["cancelled", "failed"])
async def test_a_run_with_very_much_open_ends(memory_kit: Kit, ending: str) -> None:
    app, gate = wl.Program("p"), asyncio.Event()

    @app.effect(concurrency=1)
    async def touch(number: int) -> int:
        await gate.wait()
        raise wl.Fatal("no", code="no")

    touch.name = LONG
    app.effects[LONG] = app.effects.pop("touch")

    @app.workflow
    async def go() -> int:
        return len(await wl.gather(*(touch(number) for number in range(MANY))))

    async with memory_kit.hosting(app, settings=LEASED) as universe:
        world = await universe.ensure("w", app)
        run = await world.start(go(), id="r")

        async def all_open() -> bool:
            machine = await world._handle.machine()
            return len(machine.work.open) == MANY and not machine.unfinished

        await aio.until(all_open, seconds=60)
        if ending == "cancelled":
            await run.cancel("enough")
        gate.set()
        with pytest.raises(wl.RunFailed, match="enough" if ending == "cancelled" else "no"):
            await run.result(60)
        at, engine = await world._handle.address(), universe._connection.store.engine

        async def nothing_open() -> bool:
            return not await kits.opened(engine, at)

        await aio.until(nothing_open, seconds=60)
        assert await queue_check.faults(universe._connection, at, app.name, kits.scan(universe)) == []
        assert not (await world._handle.machine()).unfinished
