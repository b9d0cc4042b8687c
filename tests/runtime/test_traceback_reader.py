"""Where user code failed is kept beside the journal, on every way that a failure takes, and shown to who asks."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.kits import apart
from tests.kits import kit as kits
from tests.kits.kit import Kit
from worldline.inspect import why
from worldline.model.roles import Role
from worldline.model.traces import TraceSource
from worldline.model.work import WorkState
from worldline.runtime import traceback_reader


@dataclass(frozen=True)
class Break(wl.Request[int]):
    pass


@dataclass(frozen=True)
class Poke:
    pass


def outer() -> None:
    inner("hunter2")


def inner(secret: str) -> None:
    raise ValueError(f"{len(secret)} characters")


def program(seen: list[Any] | None = None) -> wl.Program:
    app = wl.Program("fails")

    @app.reducer
    @dataclass
    class Cell:
        count: int = 0

        @wl.on
        def answer(self, event: Break) -> int:
            outer()
            return 1

        @wl.on
        def poke(self, event: Poke) -> None:
            outer()

    @app.workflow
    async def fails() -> None:
        outer()

    @app.effect(retry=wl.Retry(attempts=1))
    async def breaks() -> None:
        outer()

    @app.effect(retry=wl.Retry(attempts=1))
    def breaks_in_a_thread() -> None:
        outer()

    @app.effect(retry=wl.Retry(attempts=2, initial_delay=3_600, max_delay=3_600))
    async def later() -> None:
        outer()

    @app.effect(retry=wl.Retry(attempts=1, on_exhausted="park"))
    async def parks() -> None:
        outer()

    @app.workflow
    async def tries(name: str) -> str:
        try:
            await app.effects[name]()
        except wl.EffectFailed as error:
            assert seen is not None
            seen.append(list(getattr(error, "__notes__", [])))
            return error.code
        return ""

    return app


def is_here(text: str) -> bool:
    return "in outer\n    inner(" in text and "in inner\n" in text


@pytest.mark.parametrize("name", ["breaks", "breaks_in_a_thread"])
@pytest.mark.parametrize(
    "hosts", [[[Role.WORLDS, Role.ADAPTER, Role.TIMERS]], [[Role.WORLDS, Role.TIMERS], [Role.ADAPTER]]]
)
async def test_an_effect_that_fails_says_where(memory_kit: Kit, name: str, hosts: list[list[Role]]) -> None:
    """Handed over inside a process, and through the inbox from another."""
    seen: list[Any] = []
    app = program(seen)
    async with AsyncExitStack() as stack:
        for roles in hosts:
            await stack.enter_async_context(apart.host(memory_kit, app, roles=roles))
        client = await stack.enter_async_context(memory_kit.hosting())
        world = await client.create("w", app)
        assert await kits.run(world, app.workflows["tries"](name), id="r") == "ValueError"
        [[note]] = seen
        assert note.startswith("traceback of the effect:\n")
        assert is_here(note)
        engine, at = client._connection.store.engine, await world._handle.address()
        [kept] = await traceback_reader.of_world(engine, at)
        assert [each.source for each in kept.traces] == [TraceSource.EFFECT, TraceSource.ATTEMPTS]
        assert is_here(kept.traces[0].text)
        assert all("inner(" not in repr(entry) for entry in await world.journal()), "it is not in the journal"
        await kits.prove(world, app)


async def test_what_a_client_waits_for_says_where_it_failed(memory_kit: Kit) -> None:
    app = program()
    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        with pytest.raises(wl.RunFailed) as failed:
            await world.run(app.workflows["fails"](), id="r", timeout=20)
        assert is_here(failed.value.__notes__[0])
        with pytest.raises(wl.RunFailed) as failed:
            await (await world.attach("r")).result(20)
        assert is_here(failed.value.__notes__[0])
        with pytest.raises(wl.RunFailed) as failed:
            await world.ask(Break(), timeout=20)
        assert is_here(failed.value.__notes__[0])
        assert "hunter2" not in str(failed.value)
        [found] = (await why.why(world._handle)).failed
        assert (found.run, found.command) == ("r", "worldline runs show w r")
        assert is_here(found.trace)
        assert is_here((await why.find_run(world._handle, "r")).trace)


async def test_why_says_where(memory_kit: Kit) -> None:
    app = program()
    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        await aio.journaled(await world.send(Poke()), 20)
        await kits.begin(world, app.workflows["tries"]("later"), id="l")
        await kits.begin(world, app.workflows["tries"]("parks"), id="p")
        engine, at = universe._connection.store.engine, await world._handle.address()

        async def tried() -> bool:
            states = [each.work.state for each in await kits.opened(engine, at) if each.work.trace]
            return sorted(states) == [WorkState.WAITING, WorkState.PARKED]

        await aio.until(tried)
        reasons = {each.kind: each for each in (await why.why(world._handle)).reasons}
        for kind in ("dead", "retrying", "parked"):
            assert is_here(reasons[kind].trace), kind


async def test_a_world_that_is_deleted_keeps_none(memory_kit: Kit) -> None:
    app = program()
    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        with pytest.raises(wl.RunFailed):
            await world.run(app.workflows["fails"](), timeout=20)
        engine, at = universe._connection.store.engine, await world._handle.address()
        assert await traceback_reader.of_world(engine, at)
        await world.delete(wait=True)
        assert await traceback_reader.of_world(engine, at) == []


async def test_more_than_a_page_is_read(memory_kit: Kit) -> None:
    app = wl.Program("many")

    @app.workflow
    async def fails(text: str) -> None:
        raise ValueError(text)

    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        for number in range(80):
            await kits.begin(world, fails("x" * 9_000), id=f"r{number}")
        engine, at = universe._connection.store.engine, await world._handle.address()

        async def all_ended() -> bool:
            return sum(len(each.traces) for each in await traceback_reader.of_world(engine, at)) == 80

        await aio.until(all_ended)
        assert [each.step for each in await traceback_reader.of_world(engine, at)] == sorted(
            (each.step for each in await traceback_reader.of_world(engine, at)), reverse=True
        )
        assert await traceback_reader.of_run(engine, at, "r0")
