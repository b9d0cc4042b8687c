"""Code that does not return: its step is given up and counts against its input, and the world goes on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits import sums
from tests.kits.kit import Kit
from tests.kits.sums import AddUp, Trap
from worldline.kernel.rows.row_records import RunStatus
from worldline.observe import measures, sinks
from worldline.runtime import facts

TIMEOUT_MS = 150
SETTINGS = kits.settings(worker={"step_timeout_ms": TIMEOUT_MS, "crash_budget": 2})


def loop() -> None:
    while True:
        pass


def catch() -> None:
    """Code that will not be stopped."""
    while True:
        try:
            while True:
                pass
        except BaseException:  # noqa: BLE001
            pass


def log_and_catch() -> None:
    for number in range(10**12):
        try:
            wl.log.info("still here", number=number)
        except BaseException:  # noqa: BLE001
            continue


def recover() -> None:
    """Code that catches the interrupt and returns, as if nothing had been."""
    try:
        loop()
    except BaseException:  # noqa: BLE001
        return


def sleep() -> None:
    time.sleep(3)


def program(hang: Callable[[], None]) -> tuple[wl.Program, wl.Workflow[[], None], wl.Workflow[[], None]]:
    app = sums.program(trap=hang)

    @app.workflow
    async def hangs() -> None:
        await wl.sleep(0.01)
        hang()

    def where(event: AddUp) -> bool:
        hang()
        return True

    @app.workflow
    async def waits() -> None:
        await wl.wait(AddUp, where=where)

    return app, hangs, waits


def kernel_threads() -> int:
    return sum(each.name == "worldline-kernel" for each in threading.enumerate())


@pytest.mark.probe("trial.held-against")
@pytest.mark.parametrize("hang", [loop, catch, log_and_catch, recover, sleep])
async def test_a_handler_that_hangs_costs_its_input(memory_kit: Kit, hang: Callable[[], None]) -> None:
    app, meter = program(hang)[0], measures.Meter()
    before = kernel_threads()
    observed = sinks.Observed(facts.Telling([("meter", meter.tell)]))
    process = await memory_kit.process(app, settings=SETTINGS, watchdog=True, observed=observed)
    world = await process.universe.ensure("w", app)
    beside = [await process.universe.ensure(f"b{number}", app) for number in range(5)]
    assert [await each.ask(AddUp(1), timeout=10) for each in [world, *beside]] == [1] * 6
    sending = asyncio.ensure_future(world.send(Trap(1000)))
    await asyncio.sleep(0)
    asked = [asyncio.ensure_future(each.ask(AddUp(1), timeout=30)) for each in [*beside, world]]
    assert [await each for each in asked] == [2] * 6
    await sending
    [letter] = await kits.dead(process.engine, await world._handle.address())
    assert "2 times in a row" in letter.dead.reason
    assert meter.value("worldline_step_deaths_total", "hung") == 2
    assert await world.ask(AddUp(1), timeout=10) == 3
    await kits.prove(world, app) if hang is not sleep else None

    async def ended() -> bool:
        return kernel_threads() <= before + 1

    await aio.until(ended)
    await process.close()


@pytest.mark.parametrize("where", [False, True])
async def test_a_run_that_hangs_is_blocked_or_its_event_a_dead_letter(memory_kit: Kit, *, where: bool) -> None:
    app, hangs, waits = program(loop)
    process = await memory_kit.process(app, settings=SETTINGS, watchdog=True)
    world = await process.universe.ensure("w", app)
    await kits.begin(world, waits() if where else hangs(), id="r")
    if where:
        await world.send(AddUp(5))
    at = await world._handle.address()

    async def settled() -> bool:
        machine = await world._handle.machine()
        blocked = machine.runs["r"].record.status is RunStatus.BLOCKED
        return bool(await kits.dead(process.engine, at)) if where else blocked

    await aio.until(settled)
    assert await (await process.universe.ensure("other", app)).ask(AddUp(1), timeout=10) == 1
    await process.close()


async def test_memory_that_runs_out_counts_too(memory_kit: Kit) -> None:
    def raise_it() -> None:
        raise MemoryError

    app = program(raise_it)[0]
    settings = kits.settings(worker={"crash_budget": 1})
    process = await memory_kit.process(app, settings=settings, watchdog=True)
    world = await process.universe.ensure("w", app)
    await world.send(Trap(1000))
    assert await world.ask(AddUp(1), timeout=20) == 1
    [letter] = await kits.dead(process.engine, await world._handle.address())
    assert "ran out of memory" in letter.dead.reason
    await process.close()
