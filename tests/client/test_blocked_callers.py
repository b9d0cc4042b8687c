"""Callers of a run that waits for a person are told so at once, with the command to type, and do not wait for ever:
in the process that runs the world, and in any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit
from worldline.client import world_answers
from worldline.runtime import world_reader

SOON = msgspec.structs.replace(kits.SETTINGS, blocked_wait_ms=200)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_answers, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(world_reader, "WAIT_MS", 100)


@dataclass(frozen=True)
class Go:
    pass


def program(*, edited: bool = False) -> wl.Program:
    app = wl.Program("p")

    @app.effect
    async def echo(text: str) -> str:
        return text

    @app.effect
    async def shout(text: str) -> str:
        return text.upper()

    @app.effect(retry=wl.Retry(attempts=1, on_exhausted="park"))
    async def breaks() -> str:
        raise ValueError("the printer is on fire")

    @app.workflow
    async def talks() -> str:
        said = await (shout if edited else echo)("hello")
        await wl.wait(Go)
        return said

    @app.workflow
    async def parent() -> str:
        return await talks()

    @app.workflow
    async def prints() -> str:
        return await breaks()

    return app


BLOCKED = (
    r"run '{id}' is blocked: run '{id}' \(talks\), operation 1: .*`worldline why w --store .*`, or type "
    r"`worldline runs retry w {id} --store .*`"
)
PARKED = (
    r"effect breaks \w{{12}} is parked after attempt 1: .*the printer is on fire; "
    r"type `worldline effect retry \w{{12}} --store .*`, or `worldline effect answer"
)
WAYS = {
    "blocked": ("talks", BLOCKED.format(id="r")),
    "child": ("parent", BLOCKED.format(id="r/0")),
    "parked": ("prints", PARKED.format()),
}
WHERE = ["here", "elsewhere"]


def call(app: wl.Program, way: str) -> wl.Call[str]:
    made: wl.Call[str] = app.workflows[WAYS[way][0]]()
    return made


@asynccontextmanager
async def caller(
    kit: Kit, way: str, where: str, settings: wl.Settings = SOON
) -> AsyncIterator[tuple[wl.World, wl.Program]]:
    """The world, as a caller has it: in the process that hosts it, or elsewhere. What is to be blocked has begun, and
    is blocked when it next goes on.
    """
    app = program()
    if way != "parked":
        async with kit.hosting(app) as first:
            _ = await (await first.ensure("w", app)).start(call(app, way), id="r")
            await aio.until(lambda: echoed(first.world("w")))
        app = program(edited=True)
    async with kit.hosting(app, settings=settings) as host:
        await host.ensure("w", app)
        if where == "here":
            yield host.world("w"), app
        else:
            async with kit.hosting(settings=settings) as client:
                yield client.world("w"), app


async def echoed(world: wl.World) -> bool:
    """The run waits behind its effect."""
    return any(entry.kind is wl.Kind.EFFECT_RESULT for entry in await world.journal())


async def go_on(world: wl.World, way: str) -> None:
    if way != "parked":
        _ = await world.send(Go())


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("way", WAYS)
async def test_a_caller_is_told_and_raises_after_a_while(
    memory_kit: Kit, way: str, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with caller(memory_kit, way, where) as (world, app):
        running = asyncio.create_task(world.run(call(app, way), id="r"))
        await asyncio.sleep(0)
        await go_on(world, way)
        with pytest.raises(
            wl.errors.RunBlocked, match=rf"run 'r' of world 'w' waits for a person: {WAYS[way][1]}"
        ) as caught:
            await running
        assert "\n" not in str(caught.value)
        assert caught.value.run == "r"
        said = [each.getMessage() for each in caplog.records if each.name == "worldline"]
        if where == "elsewhere":
            [line] = said
            assert str(caught.value).removeprefix("run 'r' of world 'w' waits for a person: ") in line
        host = [each.getMessage() for each in caplog.records if each.name in ("worldline.worker", "worldline.adapter")]
        assert any("`worldline runs retry w " in line or "`worldline effect retry " in line for line in host)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("way", WAYS)
async def test_it_raises_at_once_or_never_if_it_is_told_to(memory_kit: Kit, way: str, where: str) -> None:
    async with caller(memory_kit, way, where, kits.SETTINGS) as (world, app):
        run = await world.start(call(app, way), id="r")
        await go_on(world, way)
        with pytest.raises(wl.errors.RunBlocked):
            await run.result(on_blocked="raise")
        with pytest.raises(wl.errors.RunBlocked):  # it was there before the caller was
            await world.run(call(app, way), id="r", on_blocked="raise")
        with pytest.raises(TimeoutError):
            await (await world.attach("r")).result(timeout=0.3, on_blocked="wait")


@pytest.mark.parametrize("where", WHERE)
async def test_it_goes_on_when_a_person_has_helped(memory_kit: Kit, where: str) -> None:
    async with caller(memory_kit, "parked", where, kits.SETTINGS) as (world, app):
        run = asyncio.create_task(world.run(call(app, "parked"), id="r"))

        async def parked() -> bool:
            return bool(await world.effects(state=wl.WorkState.PARKED))

        await aio.until(parked)
        [effect] = await world.effects()
        await effect.answer("by hand")
        assert await run == "by hand"


async def test_a_run_that_was_only_started_is_not_waited_for(memory_kit: Kit) -> None:
    app = program()

    @app.workflow
    async def leaves() -> str:
        _ = wl.start(app.workflows["prints"]())
        await wl.wait(Go)
        return "left"

    async with memory_kit.hosting(app, settings=SOON) as universe:
        world = await universe.ensure("w", app)
        run = await world.start(leaves())

        async def parked() -> bool:
            return bool(await world.effects(state=wl.WorkState.PARKED))

        await aio.until(parked)
        with pytest.raises(TimeoutError):
            await run.result(timeout=0.5, on_blocked="raise")


async def test_a_dry_fork_says_what_waits_to_be_answered(memory_kit: Kit) -> None:
    app = program()
    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        _ = await world.send(Go())
        fork = await world.fork("f")
        with pytest.raises(wl.errors.RunBlocked, match=r"the world is a dry fork.*`worldline effect answer"):
            await fork.run(app.workflows["talks"](), on_blocked="raise", timeout=5)


async def test_what_is_neither_is_refused(memory_kit: Kit) -> None:
    app = program()
    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        with pytest.raises(wl.BadInput, match='use "raise" or "wait"'):
            await world.run(app.workflows["talks"](), on_blocked="never")  # type: ignore[arg-type]
