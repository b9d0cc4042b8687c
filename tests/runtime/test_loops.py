"""What happens when a turn goes wrong: outside faults are tried again, a bug stops its role and is heard of."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits import sums
from tests.kits.kit import Kit
from tests.kits.sums import AddUp
from worldline.base import errors
from worldline.runtime import role_loop
from worldline.store import kv


def program() -> wl.Program:
    app = sums.program()

    @app.effect
    async def touch() -> str:
        return "touched"

    @app.workflow
    async def go() -> str:
        await wl.sleep(0.05)
        return await touch()

    return app


async def test_faults_are_tried_again_with_a_growing_pause(memory_kit: Kit) -> None:
    pauses: list[float] = []

    class Env(kits.Env):
        async def sleep(self, seconds: float) -> None:
            pauses.append(seconds)

    turns = 0

    async def tick() -> None:
        nonlocal turns
        turns += 1
        if turns <= 8:
            raise errors.StoreUnavailable("down")
        await asyncio.sleep(0)

    role = role_loop.Loop("role", tick, Env())
    role.start()

    async def recovered() -> bool:
        return role.ticks > 3

    await aio.until(recovered)
    await role.stop()
    await role.join()
    assert role.failed is None
    assert isinstance(role.last_error, errors.StoreUnavailable)
    assert len(pauses) == 8
    assert all(0 < pause <= role_loop.PAUSE_MOST_MS / 1000 for pause in pauses)


async def test_a_bug_stops_the_role_and_join_raises_it() -> None:
    async def tick() -> None:
        raise AssertionError("this cannot be")

    role = role_loop.Loop("role", tick, kits.Env())
    role.start()
    with pytest.raises(AssertionError, match="this cannot be"):
        await role.join()
    assert isinstance(role.failed, AssertionError)
    assert role.ticks == 0
    await role.stop()  # stopping what has ended is nothing


async def test_stopping_wakes_a_role_that_rests(memory_kit: Kit) -> None:
    app = program()
    rests = {"scan_ms": 600_000}
    process = await memory_kit.process(app, settings=kits.settings(worker=rests, adapter=rests, timer=rests))
    await asyncio.sleep(0.1)
    async with asyncio.timeout(60):
        await process.close()


class Flaky:
    """An engine that is out of reach now and then."""

    def __init__(self, engine: kv.Engine) -> None:
        self._engine = engine
        self.down = False
        self.refused = 0

    def _check(self) -> None:
        if self.down:
            self.refused += 1
            raise errors.StoreUnavailable("down")

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        self._check()
        return await self._engine.read(*requests)

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        self._check()
        return await self._engine.commit(*batches)

    async def wait(self, prefix: bytes, seen: int, timeout_ms: int) -> bool:
        self._check()
        return await self._engine.wait(prefix, seen, timeout_ms)

    async def durability(self) -> kv.Durability:
        return await self._engine.durability()

    async def close(self) -> None:
        await self._engine.close()


async def flaky(kit: Kit, app: wl.Program) -> tuple[kits.Process, Flaky]:
    made: list[Flaky] = []

    def wrap(engine: Any) -> Flaky:
        made.append(Flaky(engine))
        return made[-1]

    return await kit.process(app, wrap=wrap), made[0]


async def test_a_host_outlives_its_store(memory_kit: Kit) -> None:
    """Out of reach in the middle of everything, and back: all roles go on, and nothing is lost or done twice."""
    app = program()
    process, engine = await flaky(memory_kit, app)
    world = await process.universe.ensure("w", app)
    assert await world.ask(AddUp(1), timeout=10) == 1
    run = await world.start(app.workflows["go"](), id="r")
    engine.down = True

    async def noticed() -> bool:
        return all(each.last_error is not None for each in process.host._loops)

    await aio.until(noticed)
    with pytest.raises(errors.StoreUnavailable):
        await world.ask(AddUp(10), timeout=10)
    engine.down = False
    assert await run.result(20) == "touched"
    assert await world.ask(AddUp(100), timeout=10) in (101, 111)
    assert process.host.failed is None
    await process.close()


@pytest.mark.parametrize("role", ["worlds", "effects", "timers"])
async def test_a_bug_in_a_role_is_heard_of_when_the_host_closes(memory_kit: Kit, role: str) -> None:
    app = program()
    process = await memory_kit.process(app)
    world = await process.universe.ensure("w", app)
    assert await world.ask(AddUp(1), timeout=10) == 1

    async def broken() -> None:
        raise AssertionError("this cannot be")

    names = ["worlds", "effects", "timers"]
    process.host._loops[names.index(role)]._tick = broken
    getattr(process.host, role).wake()

    async def failed() -> bool:
        return process.host.failed is not None

    await aio.until(failed)
    with pytest.raises(AssertionError, match="this cannot be"):
        await world.ask(AddUp(1), timeout=10)
    with pytest.raises(AssertionError, match="this cannot be"):
        await process.close()


async def test_nobody_waits_for_a_worker_that_has_died(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was handed over and had not got its turn yet is given back."""
    app = program()
    process = await memory_kit.process(app)
    world = await process.universe.ensure("w", app)
    assert await world.ask(AddUp(1), timeout=10) == 1

    def broken(_: int) -> None:
        raise AssertionError("this cannot be")

    monkeypatch.setattr(process.host.worlds._holdings, "choose", broken)
    async with asyncio.timeout(60):
        with pytest.raises((errors.Error, AssertionError)):
            await world.ask(AddUp(1))
    with pytest.raises(AssertionError, match="this cannot be"):
        await process.close()


async def test_callers_are_not_left_waiting_by_a_bug(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cycle breaks on an assertion: whoever is in it is told at once, whoever comes later too."""
    app = program()
    process = await memory_kit.process(app)
    world = await process.universe.ensure("w", app)
    assert await world.ask(AddUp(1), timeout=10) == 1

    def broken(*_: object) -> None:
        raise AssertionError("this cannot be")

    monkeypatch.setattr(process.host.worlds._cycle._stepper, "_step_all", broken)
    asked = [asyncio.ensure_future(world.ask(AddUp(1))) for _ in range(5)]
    async with asyncio.timeout(60):
        results = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(each, errors.Error | AssertionError) for each in results), results
    async with asyncio.timeout(60):
        with pytest.raises((errors.Error, AssertionError)):
            await world.ask(AddUp(1))
    with pytest.raises(AssertionError, match="this cannot be"):
        await process.close()
