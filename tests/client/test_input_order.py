"""Order: an input that was acked before another was sent is taken before it, by whichever way either comes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Around, Kit
from worldline.base import errors
from worldline.model import payload
from worldline.worker import waiting_input

app = wl.Program("ordered")


@dataclass(frozen=True)
class Note:
    number: int
    text: str = ""


@dataclass(frozen=True)
class Notes(wl.Request[list[int]]):
    pass


@app.reducer()
@dataclass
class Book:
    numbers: list[int] = field(default_factory=list)

    @wl.on
    def note(self, event: Note) -> None:
        self.numbers.append(event.number)

    @wl.on
    def notes(self, event: Notes) -> list[int]:
        return self.numbers


class Deaf(Around):
    """An engine to which no hint comes: only reading tells what others have written."""

    async def wait(self, prefix: bytes, seen: int, timeout_ms: int) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), timeout_ms / 1000)
        return False


@contextlib.asynccontextmanager
async def two_doors(kit: Kit) -> AsyncIterator[tuple[wl.World, wl.World]]:
    """The world as its host has it, and as a client has it. The host learns of the client's inputs by reading alone."""
    quiet = kits.settings(worker={"scan_ms": 60_000})
    async with kit.hosting(app, settings=quiet, wrap=Deaf) as host, kit.hosting() as client:
        here = await host.ensure("w", app)
        assert await here.ask(Notes(), timeout=20) == []
        yield here, client.world("w")


async def test_sends_by_two_doors(kit: Kit) -> None:
    async with two_doors(kit) as (here, there):
        for number in range(20):
            await (there if number % 2 else here).send(Note(number))
        assert await here.ask(Notes(), timeout=20) == list(range(20))


async def test_an_ask_sees_what_was_acked_before_it(kit: Kit) -> None:
    async with two_doors(kit) as (here, there):
        for number in range(10):
            await there.send(Note(number))
            assert await here.ask(Notes(), timeout=20) == list(range(number + 1))


async def test_a_run_that_is_started_sees_what_was_acked_before_it(memory_kit: Kit) -> None:
    async with two_doors(memory_kit) as (here, there):
        await there.send(Note(1))
        await here.schedule("s", Note(2), every=1_000)
        kinds = [each.kind.name for each in await kits.entries(here)]
        assert kinds.index("EVENT", 2) < kinds.index("CONTROL")


async def test_a_backlog_comes_first(kit: Kit) -> None:
    """More waits in the inbox than several cycles take; what is sent after it is taken after it, by any door."""
    small = kits.settings(worker={"max_inbox_batch": 4})
    async with kit.hosting() as client:
        there = await client.ensure("w", app)
        for number in range(30):
            await there.send(Note(number), id=f"n{number}")
        async with kit.hosting(app, settings=small) as host:
            here = host.world("w")
            await here.send(Note(30))
            assert await here.ask(Notes(), timeout=20) == list(range(31))


async def test_what_cannot_wait_for_the_inbox_goes_through_it(memory_kit: Kit) -> None:
    """A page that is not the last defers what was handed over, but not a timer that has fired."""
    small = kits.settings(worker={"max_inbox_batch": 2})
    deferred: list[BaseException] = []
    async with memory_kit.hosting() as client, memory_kit.hosting(app, settings=small) as host:
        here = await host.ensure("w", app)
        held = await host._connection.host.worlds.hold(await here._handle.address())  # type: ignore[union-attr]
        assert held is not None
        await held.quiet()
        held.begin_cycle()  # no cycle takes it yet
        for number in range(5):
            await client.world("w").send(Note(number))
        sending = asyncio.ensure_future(here.send(Note(5)))

        async def handed_over() -> bool:
            return bool(held.handed)

        await aio.until(handed_over)
        held.handed[0].done.add_done_callback(lambda each: deferred.append(each.exception()))  # type: ignore[union-attr, arg-type]
        held.end_cycle()
        host._connection.host.worlds.poke(held.at)  # type: ignore[union-attr]
        await sending
        assert isinstance(deferred[0], waiting_input.Deferred)
        assert await here.ask(Notes(), timeout=20) == list(range(6))


async def test_an_input_behind_one_that_cannot_be_read_now_is_acked_and_waits(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with memory_kit.hosting() as client, memory_kit.hosting(app) as host:
        here = await host.ensure("w", app)
        assert await here.ask(Notes(), timeout=20) == []
        down = True
        load = host._connection.blobs.load

        async def loading(carried: payload.Payload) -> bytes:
            if down:
                raise errors.StoreUnavailable("scripted")
            return await load(carried)

        monkeypatch.setattr(host._connection.blobs, "load", loading)
        await client.world("w").send(Note(0, "x" * 100_000))
        await asyncio.wait_for(here.send(Note(1)), 20)
        down = False
        assert await here.ask(Notes(), timeout=20) == [0, 1]
