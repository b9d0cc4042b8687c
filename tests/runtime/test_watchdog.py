"""What hangs is told, once, and left alone; and a process can say what it is doing."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass

import msgspec

import worldline as wl
from tests import aio
from tests.kits.kit import Kit
from worldline.base import env as envs
from worldline.model.settings import Settings
from worldline.observe import dump, measures, sinks
from worldline.runtime import facts as telemetry
from worldline.runtime import watchdog as watchdogs


@dataclass(frozen=True)
class Stall(wl.Request[str]):
    pass


class App:
    def __init__(self) -> None:
        self.program = app = wl.Program("p")
        self.gate = threading.Event()
        self.outside = asyncio.Event()

        @app.reducer()
        @dataclass
        class Stalling:
            @wl.on
            def stall(self, event: Stall) -> str:
                app_gate.wait(60)
                return "went on"

        app_gate = self.gate

        @app.effect
        async def wait() -> None:
            await self.outside.wait()

        @app.workflow
        async def go() -> None:
            await wait()

        self.go = go


def observed(*listeners: telemetry.Listener) -> sinks.Observed:
    return sinks.Observed(telemetry.Telling([(str(number), each) for number, each in enumerate(listeners)]))


async def test_a_handler_that_does_not_return_is_told_once_and_goes_on(memory_kit: Kit) -> None:
    app, meter = App(), measures.Meter()
    notices: list[wl.ops.Notice] = []

    def note(fact: telemetry.Fact) -> None:
        notices.extend(sinks.notices(fact))

    settings = Settings(hang_ms=200)
    process = await memory_kit.process(app.program, settings=settings, observed=observed(meter.tell, note))
    world = await process.universe.ensure("slow", app.program)
    asked = asyncio.ensure_future(world.ask(Stall(), timeout=60))

    async def told() -> bool:
        return meter.value("worldline_hangs_total") == 1

    try:
        await aio.until(told)
        lags = meter.value("worldline_loop_lag_seconds")

        async def looked_again() -> bool:
            return meter.value("worldline_loop_lag_seconds") >= lags + 2

        await aio.until(looked_again)
        assert meter.value("worldline_hangs_total") == 1, "once"
        found = process.host.dump()
        assert [(each.worlds, each.age_ms >= 200) for each in found.cycles] == [(1, True)]
        assert [(each.name, each.busy) for each in found.worlds] == [("slow", True)]
        assert "stall" in dump.stacks(), "where it hangs"
    finally:
        app.gate.set()
    assert await asked == "went on", "nothing is cut short"
    assert [notice.message.startswith("no step of slow") for notice in notices if notice.kind == "hang"] == [True]
    assert process.host.dump().cycles == []


class Late(envs.FixedEnv):
    """A rest ends two and a half seconds too late."""

    def timeout(self, seconds: float) -> asyncio.Timeout:
        self.advance_us(int(seconds * 1_000_000) + 2_500_000)
        return asyncio.timeout(0)


async def test_an_effect_that_blocks_the_loop_is_seen_as_lag() -> None:
    facts: list[telemetry.Fact] = []
    telling = telemetry.Telling([("all", facts.append)])
    watchdog = watchdogs.Watchdog(Late(7), dict, hang_ms=1_000, telemetry=telling)
    await watchdog.tick()
    assert facts == [telemetry.Lagged(2_500_000)]


async def test_a_watchdog_that_is_woken_ends_without_a_look() -> None:
    facts: list[telemetry.Fact] = []
    telling = telemetry.Telling([("all", facts.append)])
    watchdog = watchdogs.Watchdog(envs.FixedEnv(7), dict, hang_ms=1_000, telemetry=telling)
    watchdog.wake()
    for _ in range(10):
        await watchdog.tick()
    assert facts == []


async def test_a_dump_says_what_is_going_on_and_nothing_of_its_contents(memory_kit: Kit) -> None:
    app = App()
    process = await memory_kit.process(app.program, settings=Settings())
    world = await process.universe.ensure("alice", app.program)
    _ = await world.start(app.go(), id="a-secret-id")

    async def running() -> bool:
        return bool(process.host.dump().effects)

    await aio.until(running)
    found = process.host.dump()
    at = await world._handle.address()
    assert [each.name for each in found.roles] == ["world worker", "effect worker", "timer worker", "proofs"]
    assert [(each.world, each.name, each.epoch) for each in found.worlds] == [(at.world.hex(), "alice", 1)]
    assert [(each.effect, each.world, each.attempt) for each in found.effects] == [("wait", at.world.hex(), 1)]
    assert (found.worlds_omitted, found.effects_omitted) == (0, 0)
    text = msgspec.json.encode(found)
    assert b"secret" not in text
    app.outside.set()


async def test_long_lists_are_cut_and_say_so(memory_kit: Kit) -> None:
    app = App()
    process = await memory_kit.process(app.program, settings=Settings())
    for number in range(dump.LISTED_MAX + 3):
        world = await process.universe.ensure(f"w{number}", app.program)
        assert await process.host.worlds.hold(await world._handle.address()) is not None
    found = process.host.dump()
    assert (len(found.worlds), found.worlds_omitted) == (dump.LISTED_MAX, 3)
    assert [each.world for each in found.worlds] == sorted(each.world for each in found.worlds)
