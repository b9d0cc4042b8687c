"""A client whose world no process runs: it is told so, and what it sent is not lost."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit
from tests.kits.sums import Add, AddUp, program
from tests.worker import test_containment as containment
from worldline.client import no_host, world_answers

SOON = msgspec.structs.replace(kits.SETTINGS, host_wait_ms=300)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers look, and warn, after times that a test can wait for."""
    monkeypatch.setattr(no_host, "WARN_SECONDS", 0.3)
    monkeypatch.setattr(world_answers, "CHECK_SECONDS", 0.3)
    containment.quickly(monkeypatch, 20)


async def test_a_question_ends_and_stays_durable(memory_kit: Kit) -> None:
    app = program()
    client = await memory_kit.process(settings=SOON)
    world = await client.universe.ensure("w", app)
    with pytest.raises(wl.NotHosted, match=r"no process hosts world 'w' \(program 'p'\): what was sent is durable"):
        await world.ask(AddUp(3), id="q")
    assert await kits.unread(client.engine, await world._handle.address()) == 1
    async with memory_kit.hosting(app):
        assert await world.ask(AddUp(3), id="q", timeout=20) == 3, "the same question: taken once"
        assert await world.ask(AddUp(1), timeout=20) == 4


async def test_a_run_ends_and_is_found_again(memory_kit: Kit) -> None:
    app = program()

    @app.workflow
    async def double(number: int) -> int:
        return number * 2

    client = await memory_kit.process(settings=SOON)
    world = await client.universe.ensure("w", app)
    with pytest.raises(wl.NotHosted, match="durable"):
        await world.run(double(4), id="r")
    async with memory_kit.hosting(app):
        assert await world.run(double(4), id="r", timeout=20) == 8
    sent = await world.send(Add(1))
    with pytest.raises(wl.NotHosted, match="durable"):
        await sent.applied()


async def test_a_time_that_is_given_is_over_first(memory_kit: Kit) -> None:
    client = await memory_kit.process()
    world = await client.universe.ensure("w", program())
    with pytest.raises(TimeoutError):
        await world.ask(AddUp(3), timeout=0.1)


async def test_a_paused_world_says_that_it_is_paused(memory_kit: Kit) -> None:
    app = program()
    async with memory_kit.hosting(app, settings=SOON) as universe:
        world = await universe.ensure("w", app)
        await world.pause()
        with pytest.raises(wl.NotHosted, match="world 'w' is paused: what was sent is durable and waits until"):
            await world.ask(AddUp(3))
        await world.resume()
        assert await world.ask(AddUp(1), timeout=20) == 4


async def test_a_refused_world_says_why(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    app = containment.program()
    host = await memory_kit.process(app)
    client = await memory_kit.process(settings=SOON)
    world = await client.universe.ensure("w", app)
    containment.broken_step(monkeypatch, lambda: MemoryError("no memory for this"))
    sent = await world.send(containment.Poison())
    await containment.until_refused(host, await world._handle.address())
    with pytest.raises(wl.NotHosted, match=r"cannot run world 'w' .*durable"):
        await sent.applied()


async def test_a_follower_waits_on(memory_kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    """There is nothing to be taken, so nothing to be told of but in the log."""
    app = program()
    client = await memory_kit.process(settings=SOON)
    world = await client.universe.ensure("w", app)
    following = aiter(world.follow(above=0))
    with caplog.at_level(logging.WARNING, "worldline"):
        first = asyncio.ensure_future(anext(following))

        async def warned() -> bool:
            return "no process hosts world 'w'" in caplog.text

        await aio.until(warned)
        await asyncio.wait([first], timeout=2 * SOON.host_wait_ms / 1000)
        assert not first.done()
        async with memory_kit.hosting(app) as universe:
            await universe.world("w").send(Add(1))
            entry = await asyncio.wait_for(first, 20)
    assert isinstance(entry, wl.Entry)
    assert entry.kind is wl.Kind.EVENT
