"""Answers that another host has written: a caller is told of them, also if its own process has the world by then."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Around, Kit
from tests.kits.sums import Add, AddUp, program
from worldline.base import errors
from worldline.keys import journal as journal_keys
from worldline.model import ids
from worldline.model.journal import Kind
from worldline.store import kv


class Lagging(Around):
    """Reads of one world's head and frames together, by which its journal is followed, wait until `go` is set."""

    def __init__(self, engine: kv.Engine) -> None:
        super().__init__(engine)
        self.at: ids.Address | None = None
        self.reading = asyncio.Event()
        self.go = asyncio.Event()

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        if self.at is not None and len(requests) == 4 and requests[0] == kv.Get(journal_keys.head_key(self.at)):
            self.reading.set()
            await self.go.wait()
        return await super().read(*requests)


async def test_a_run_that_another_host_has_finished_is_returned(kit: Kit) -> None:
    """The caller's process reads the journal late, when it holds the world itself: no live event will tell it."""
    app = program()

    @app.workflow
    async def quick(number: int) -> int:
        return number

    made: list[Lagging] = []

    def wrap(engine: Any) -> Lagging:
        made.append(Lagging(engine))
        return made[-1]

    async with kit.hosting(app, wrap=wrap) as caller:
        [engine] = made
        other = await kit.process(app)
        there = await other.universe.ensure("w", app)
        await there.send(Add(1))
        here = caller.world("w")
        engine.at = at = await here._handle.address()
        running = asyncio.ensure_future(here.run(quick(7), id="r"))
        await asyncio.wait_for(engine.reading.wait(), 20)
        assert await there.run(quick(7), id="r") == 7, "the other host has started and finished it"
        await other.close()
        await here.send(Add(2))

        async def held() -> bool:
            assert caller._connection.host is not None
            return caller._connection.host.worlds.holds(at)

        await aio.until(held)
        engine.go.set()
        assert await asyncio.wait_for(running, 20) == 7


async def test_callers_look_at_the_journal_when_the_world_comes(memory_kit: Kit) -> None:
    """What is awaited was written elsewhere before the world came here."""
    app = program()
    async with memory_kit.hosting(app) as caller:
        assert caller._connection.host is not None
        other = await memory_kit.process(app)
        there = await other.universe.ensure("w", app)
        at = await there._handle.address()
        with caller._connection.host.live.expecting(at, Kind.RUN_FINISHED, "r") as expected:
            await there.send(Add(1))
            await other.close()
            await caller.world("w").send(Add(2))
            assert caller._connection.host.worlds.holds(at)
            assert expected.done()
            assert expected.exception() is not None


class Unreadable(Around):
    """An engine that cannot follow the journal of one world."""

    def __init__(self, engine: kv.Engine) -> None:
        super().__init__(engine)
        self.at: ids.Address | None = None

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        if self.at is not None and len(requests) == 4 and requests[0] == kv.Get(journal_keys.head_key(self.at)):
            raise errors.StoreUnavailable("scripted")
        return await super().read(*requests)


async def test_an_answer_that_cannot_be_read_is_no_refusal(memory_kit: Kit) -> None:
    """The question was taken: an error that says the store is out of reach would let the caller ask again."""
    app = program()
    made: list[Unreadable] = []

    def wrap(engine: Any) -> Unreadable:
        made.append(Unreadable(engine))
        return made[-1]

    async with memory_kit.hosting(app) as host, memory_kit.hosting(wrap=wrap) as client:
        here = await host.ensure("w", app)
        made[0].at = await here._handle.address()
        with pytest.raises(errors.StoreUncertain, match="durable"):
            await client.world("w").ask(AddUp(5))
        assert await here.ask(AddUp(0), timeout=20) == 5


async def test_what_is_no_request_is_refused_before_it_is_sent(memory_kit: Kit) -> None:
    app = program()
    other = await memory_kit.process()
    world = await other.universe.ensure("w", app)  # hosted nowhere: what was sent would stay
    with pytest.raises(errors.BadInput, match=r"Add is not a request, so it has no answer: send it, or declare"):
        await world.ask(Add(1))  # type: ignore[arg-type]
    at = await world._handle.address()
    assert await kits.unread(other.engine, at) == 0
    await world.send(Add(1))
    assert await kits.unread(other.engine, at) == 1
    await other.close()
