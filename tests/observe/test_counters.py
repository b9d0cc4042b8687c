"""What a process tells its own sinks: counters that are read and set back, dispositions, the life of the host."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.fixtures import memory_kit
from tests.kits.kit import Kit, Process
from tests.kits.pausing import Pausing
from worldline.observe import sinks
from worldline.runtime import operator_calls
from worldline.store import kv

__all__ = ["memory_kit"]


@dataclass(frozen=True)
class Unknown:
    number: int


def program() -> wl.Program:
    app = wl.Program("p")

    @app.effect(retry=wl.Retry(attempts=2, initial_delay=0.01))
    async def fetch(key: str) -> str:
        if wl.attempt().number == 1 or key == "never":
            raise OSError("no line")
        return key

    @app.workflow
    async def go(key: str) -> str:
        await wl.sleep(0.001)
        return await fetch(key)

    @app.workflow
    async def waits() -> str:
        try:
            await wl.wait(Unknown)
        except wl.Cancelled as cancelled:
            return f"{cancelled.kind.name}: {cancelled.reason}"
        return "never"

    return app


async def test_counters_are_read_and_set_back(memory_kit: Kit) -> None:
    app, counters = program(), wl.ops.Counters()
    with sinks.observed(wl.ops.Sinks(metrics=counters), features=()) as observed:
        async with memory_kit.hosting(app, observed=observed) as universe:
            world = await universe.ensure("w", app)
            assert await world.run(app.workflows["go"]("a"), timeout=20) == "a"
            first = counters.snapshot()
            steps = counters.value("worldline_steps_total")
            assert steps >= 3
            assert [each.name for each in first] == sorted(each.name for each in first)
            lasted = [each for each in first if each.kind == "histogram"]
            assert all(each.most <= each.value and each.count >= 1 for each in lasted)
            assert {each.name for each in first} <= {each.name for each in counters.reset()}
            assert counters.value("worldline_steps_total") == 0
            assert await world.run(app.workflows["go"]("b"), timeout=20) == "b"
            assert 0 < counters.value("worldline_steps_total") <= steps
            tried = counters.value("worldline_effect_attempts_total", outcome="retried")
            assert tried == 1


async def test_dispositions_are_told(memory_kit: Kit) -> None:
    app = program()
    disposed: list[wl.ops.Disposed] = []
    with sinks.observed(wl.ops.Sinks(disposed=disposed.append), features=()) as observed:
        async with memory_kit.hosting(app, observed=observed) as universe:
            world = await universe.ensure("w", app)
            assert await world.run(app.workflows["go"]("a"), timeout=20) == "a"
            with pytest.raises(wl.RunFailed):
                await world.run(app.workflows["go"]("never"), timeout=20)
            _ = await world.send(Unknown(1))
            await world.snapshot()
    effects = [(each.name, each.attempt, each.outcome) for each in disposed if each.kind == "effect"]
    assert effects == [("fetch", 1, "retried"), ("fetch", 2, "ok"), ("fetch", 1, "retried"), ("fetch", 2, "error")]
    assert len({each.id for each in disposed if each.kind == "effect"}) == 2
    assert [each.outcome for each in disposed if each.kind == "timer"] == ["fired", "fired"]
    [letter] = [each for each in disposed if each.kind == "input"]
    assert (letter.outcome, "Unknown" in letter.message) == ("dead_letter", True)


async def test_the_life_of_a_host_is_told(memory_kit: Kit) -> None:
    app = program()
    told: list[wl.ops.HostEvent] = []
    with sinks.observed(wl.ops.Sinks(host=told.append), features=()) as observed:
        process = await memory_kit.process(app, observed=observed)
        universe = process.universe
        world = await universe.ensure("w", app)
        assert await world.run(app.workflows["go"]("a"), timeout=20) == "a"
        await process.close()
    assert [each.kind for each in told] == ["started", "closing", "closed"]
    assert len({each.worker for each in told}) == 1
    assert (told[1].worlds, told[2].worlds) == (1, 0)


@asynccontextmanager
async def told_of(kit: Kit, app: wl.Program, **options: Any) -> AsyncIterator[tuple[Process, list[wl.ops.HostEvent]]]:
    """A host with a world "w" that it holds, and what it tells of its life."""
    told: list[wl.ops.HostEvent] = []
    with sinks.observed(wl.ops.Sinks(host=told.append), features=()) as observed:
        process = await kit.process(app, observed=observed, **options)
        try:
            world = await process.universe.ensure("w", app)
            assert await world.run(app.workflows["go"]("a"), timeout=20) == "a"
            yield process, told
        finally:
            await process.close()


async def first(told: list[wl.ops.HostEvent], kind: sinks.HostEventKind) -> wl.ops.HostEvent:
    async def is_told() -> bool:
        return any(each.kind == kind for each in told)

    await aio.until(is_told, seconds=30)
    return next(each for each in told if each.kind == kind)


async def test_a_host_that_is_emptied_says_so(memory_kit: Kit) -> None:
    async with told_of(memory_kit, program()) as (process, told):
        worker = process.host.worlds.worker
        await operator_calls.drain_worker(process.engine, memory_kit.env, worker, draining=True)
        event = await first(told, "draining")
        assert (event.worker, event.worlds) == (worker.hex(), 1)
    assert [each.kind for each in told] == ["started", "draining", "closing", "closed"], "each is told once"


async def test_a_host_in_which_a_handler_hangs_says_so(memory_kit: Kit) -> None:
    app, going = program(), threading.Event()

    @app.reducer()
    @dataclass
    class Slow:
        count: int = 0

        @wl.on
        def unknown(self, event: Unknown) -> None:
            going.wait(60)

    settings = msgspec.structs.replace(kits.SETTINGS, hang_ms=200)
    async with told_of(memory_kit, app, settings=settings, watchdog=True) as (process, told):
        sent = asyncio.create_task(process.universe.world("w").send(Unknown(1)))
        try:
            event = await first(told, "hung")
        finally:
            going.set()
        assert (event.worlds, event.message) == (1, "w")
        await sent


async def test_a_host_whose_heartbeat_is_too_old_says_so(memory_kit: Kit) -> None:
    """Its store does not answer for longer than a lease lasts: another worker may have its worlds by then."""
    engines: list[Pausing] = []

    def wrap(engine: Any) -> Pausing:
        engines.append(Pausing(engine))
        return engines[-1]

    async with told_of(memory_kit, program(), wrap=wrap) as (_, told):

        async def is_fenced() -> bool:
            engines[0].pause()
            try:
                await asyncio.sleep(2 * kits.LEASE_TTL_MS / 1000)  # time must pass: a heartbeat is as old as it is
            finally:
                engines[0].resume()  # also if the test gives up: a host does not close without its store
            await asyncio.sleep(kits.SETTINGS.worker.heartbeat_ms / 1000)
            return any(each.kind == "fenced" for each in told)

        await aio.until(is_fenced, seconds=60)
        event = await first(told, "fenced")
        assert event.worlds == 1
        assert re.fullmatch(r"the heartbeat is \d+ ms old", event.message)


class Faulty(kits.Around):
    """An engine with a mistake in it, from when it is told."""

    is_faulty = False

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        if self.is_faulty:
            raise ZeroDivisionError("a mistake in the engine")
        return await super().read(*requests)


async def test_a_role_that_ends_with_a_bug_is_told(memory_kit: Kit) -> None:
    engines: list[Faulty] = []

    def wrap(engine: Any) -> Faulty:
        engines.append(Faulty(engine))
        return engines[-1]

    async with told_of(memory_kit, program(), wrap=wrap) as (process, told):
        engines[0].is_faulty = True
        event = await first(told, "role_failed")
        assert event.message.endswith(": a mistake in the engine")
        engines[0].is_faulty = False
        with pytest.raises(ZeroDivisionError):  # what ended a role is not lost
            await process.close()


@pytest.mark.parametrize("kind", [wl.CancelKind.USER, wl.CancelKind.POLICY, wl.CancelKind.HOST])
async def test_a_run_is_told_what_cancels_it(memory_kit: Kit, kind: wl.CancelKind) -> None:
    app = program()
    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        run = await world.start(app.workflows["waits"](), id="r")
        for wrong in (wl.CancelKind.TIMEOUT, "policy", 1):
            with pytest.raises(wl.BadInput, match=r"CancelKind\.POLICY"):
                await run.cancel("no", kind=wrong)  # type: ignore[arg-type]
        await run.cancel("enough", kind=kind)
        assert await run.result(20) == f"{kind.name}: enough"
