"""A handler that does not return costs its worker, and not the worlds beside it: others run them."""

from __future__ import annotations

import asyncio
import threading

from tests import aio
from tests.kits import kit as kits
from tests.kits import sums
from tests.kits.kit import Kit
from tests.kits.sums import AddUp, Trap
from worldline.client import send_door
from worldline.inspect import why as reasons
from worldline.kernel import user_values
from worldline.layers import leases
from worldline.model import inbox, payload
from worldline.observe import measures, sinks
from worldline.runtime import facts


class App:
    def __init__(self) -> None:
        self.gate, self.inside = threading.Event(), threading.Event()
        self.program = sums.program(trap=self.stall)

    def stall(self) -> None:
        self.inside.set()
        self.gate.wait(100)


async def test_the_worlds_beside_one_that_does_not_return_are_run_elsewhere(kit: Kit) -> None:
    app, meter = App(), measures.Meter()
    observed = sinks.Observed(facts.Telling([("meter", meter.tell)]))
    first = await kit.process(app.program, observed=observed)
    worlds = [await first.universe.ensure(f"w{number}", app.program) for number in range(8)]
    for world in worlds:
        assert await world.ask(AddUp(1), timeout=10) == 1
    bad, at = worlds[0], await worlds[0]._handle.address()
    try:
        item = inbox.InboxEvent("Trap", payload.inline(user_values.dump(Trap(100))))
        await send_door.enqueue(first.universe._connection, at, item)
        await asyncio.to_thread(app.inside.wait, 20)
        asked = [asyncio.ensure_future(world.ask(AddUp(1), timeout=60)) for world in worlds[1:]]  # in the thread's line
        second = await kit.process(app.program)
        assert [await each for each in asked] == [2] * 7, "those who wait in the process that hangs are answered"
        for world in worlds[1:]:
            assert await second.universe.world(world.name).ask(AddUp(1), timeout=60) == 3
            assert second.host.worlds.holds(await world._handle.address())
        life = await kits_life(first)
        assert life.sign.draining
        assert life.alive((await first.engine.read()).time_us), "it goes on renewing the lease of the one that hangs"
        assert first.host.worlds.holds(at)
        assert meter.value("worldline_worlds_refused_total", "hung") == 1
        await bad.send(AddUp(5))  # not lost: it waits in the inbox

        async def said() -> bool:
            why = await reasons.why(second.universe.world("w0")._handle)
            return any(each.kind == "refused" and "does not return" in each.error for each in why.reasons)

        await aio.until(said)
    finally:
        app.gate.set()
    assert await bad.ask(AddUp(0), timeout=30) == 106, "each input once"
    assert first.host.worlds.refusal(at) is None

    async def again() -> bool:
        return not (await kits_life(first)).sign.draining

    await aio.until(again)
    await second.close()
    assert await worlds[3].ask(AddUp(1), timeout=30) == 4, "it takes worlds again"
    await first.close()


async def kits_life(process: kits.Process) -> leases.HeartbeatRecord:
    worker = process.host.worlds.worker
    life = leases.decode_heartbeat(worker, (await process.engine.read(leases.get_heartbeat(worker))).value(0))
    assert life is not None
    return life


async def test_worlds_that_wait_to_be_brought_back_are_given_up(memory_kit: Kit) -> None:
    """Their leases are taken, and the thread that would restore them is not to be had."""
    app = App()
    async with memory_kit.hosting(app.program) as universe:
        for number in range(3):
            assert await (await universe.ensure(f"w{number}", app.program)).ask(AddUp(1), timeout=10) == 1
    first = await memory_kit.process(app.program)
    bad = first.universe.world("w0")
    assert await bad.ask(AddUp(1), timeout=10) == 2
    try:
        item = inbox.InboxEvent("Trap", payload.inline(user_values.dump(Trap(100))))
        await send_door.enqueue(first.universe._connection, await bad._handle.address(), item)
        await asyncio.to_thread(app.inside.wait, 20)
        others = [first.universe.world(name) for name in ("w1", "w2")]
        asked = [asyncio.ensure_future(world.ask(AddUp(1), timeout=60)) for world in others]

        async def waiting() -> bool:
            return len(first.host.worlds._taker.waiting) == 2

        await aio.until(waiting)
        second = await memory_kit.process(app.program)
        assert [await each for each in asked] == [2, 2]
        assert all([second.host.worlds.holds(await world._handle.address()) for world in others])
    finally:
        app.gate.set()
    assert await bad.ask(AddUp(0), timeout=30) == 102
    await first.close()
    await second.close()
