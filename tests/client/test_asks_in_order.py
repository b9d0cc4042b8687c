"""Asks: what comes to a host after an ask is taken after it, also if the ask has to go through the inbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.client.test_input_order import Note, Notes, app
from tests.kits import kit as kits
from tests.kits.kit import Around, Kit
from worldline.client import ask_order, send_door
from worldline.model import ids, inbox, payload
from worldline.store import kv
from worldline.worker.held_world import HeldWorld

SMALL = kits.settings(worker={"max_inbox_batch": 2})


class Gate(Around):
    """An engine that keeps back the commits that put an ask into an inbox."""

    def __init__(self, engine: kv.Engine) -> None:
        super().__init__(engine)
        self.open = asyncio.Event()
        self.kept = 0

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        for batch in batches:
            items = [kits.item_of(each.value) for each in batch.appends]
            if any(item is not None and ask_order.is_ask(item) for item in items):
                self.kept += 1
                await self.open.wait()
        return await super().commit(*batches)


async def held_back(host: wl.Universe, world: wl.World) -> HeldWorld:
    """The world, held here: no cycle takes anything until `go_on`."""
    held = await host._connection.host.worlds.hold(await world._handle.address())  # type: ignore[union-attr]
    assert held is not None
    await held.quiet()
    held.begin_cycle()
    return held


def go_on(host: wl.Universe, held: HeldWorld) -> None:
    held.end_cycle()
    host._connection.host.worlds.poke(held.at)  # type: ignore[union-attr]


@asynccontextmanager
async def gated(
    kit: Kit,
) -> AsyncIterator[tuple[wl.Universe, wl.World, HeldWorld, Gate, asyncio.Future[list[int]]]]:
    """A world that is held back, five notes from another process in its inbox, and an ask that was handed over to it
    behind them: more than one read of the inbox takes, so the ask is deferred.
    """
    gates: list[Gate] = []

    def gate(engine: kv.Engine) -> Gate:
        gates.append(Gate(engine))
        return gates[-1]

    async with kit.hosting() as client, kit.hosting(app, settings=SMALL, wrap=gate) as host:
        here = await host.ensure("w", app)
        held = await held_back(host, here)
        for number in range(5):
            await client.world("w").send(Note(number))
        asking = asyncio.ensure_future(here.ask(Notes()))
        await until(lambda: len(held.handed) == 1)
        yield host, here, held, gates[-1], asking


async def until(condition: Callable[[], bool]) -> None:
    async def holds() -> bool:
        return condition()

    await aio.until(holds)


@pytest.mark.parametrize("together", [True, False])
async def test_an_ask_that_goes_through_the_inbox_is_not_overtaken(memory_kit: Kit, together: bool) -> None:
    """It is deferred, and its way into the inbox takes long. What is sent meanwhile by the same process waits for it,
    whether it was handed over together with the ask or comes later.
    """
    async with gated(memory_kit) as (host, here, held, gate, asking):
        sending: list[asyncio.Future[Any]] = []
        if together:
            sending.append(asyncio.ensure_future(here.send(Note(5))))
            await until(lambda: len(held.handed) == 2)
        go_on(host, held)
        await until(lambda: bool(gate.kept))
        engine = await memory_kit.engine()
        await aio.until(lambda: _is_empty(engine, held.at))
        sending += [asyncio.ensure_future(here.send(Note(6))), asyncio.ensure_future(here.ask(Notes()))]
        for _ in range(50):
            await asyncio.sleep(0)
        gate.open.set()
        assert await asyncio.wait_for(asking, 20) == list(range(5))
        await asyncio.wait_for(asyncio.gather(*sending), 20)
        assert await here.ask(Notes(), timeout=20) == [*range(5), *([5] if together else []), 6]
        assert not host._connection.arrivals._lines


async def _is_empty(engine: kv.Engine, at: ids.Address) -> bool:
    return await kits.unread(engine, at) == 0


async def test_an_ask_whose_caller_is_gone_holds_up_nothing(memory_kit: Kit) -> None:
    async with gated(memory_kit) as (host, here, held, gate, asking):
        go_on(host, held)
        await until(lambda: bool(gate.kept))
        sending = asyncio.ensure_future(here.send(Note(5)))
        asking.cancel()
        await asyncio.wait_for(sending, 20)
        gate.open.set()
        assert await here.ask(Notes(), timeout=20) == list(range(6))
        assert not host._connection.arrivals._lines


async def test_inputs_to_a_world_that_is_being_taken_come_in_order(memory_kit: Kit) -> None:
    """The ask waits for the world; what comes when the world is there, and the ask has not gone on yet, waits too."""
    async with memory_kit.hosting() as client:
        await client.ensure("w", app)
    async with memory_kit.hosting(app) as host:
        here = host.world("w")
        connection = host._connection
        at = await here._handle.address()
        known, hold = send_door.hosted, asyncio.Event()

        async def late(universe: Any, of: ids.Address) -> HeldWorld | None:
            found = await known(universe, of)
            await hold.wait()
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(send_door, "hosted", late)
            asking = asyncio.ensure_future(here.ask(Notes()))
            await until(lambda: connection.host.worlds.peek(at) is not None)  # type: ignore[union-attr]
            sending = asyncio.ensure_future(here.send(Note(0)))
            for _ in range(50):
                await asyncio.sleep(0)
            hold.set()
            assert await asyncio.wait_for(asking, 20) == []
            await asyncio.wait_for(sending, 20)
        assert await here.ask(Notes(), timeout=20) == [0]


async def test_what_was_lost_on_its_way_is_not_overtaken(memory_kit: Kit) -> None:
    """Both were handed over, and the process lost the world. The ask comes back later, and is taken first."""
    real, lost, hold = send_door._hand_over, list[inbox.Item](), asyncio.Event()

    async def losing(
        universe: Any, held: HeldWorld, handover: Any, done: Any, place: ask_order.AskPlace | None
    ) -> send_door.Sending | None:
        if handover.item not in lost:
            lost.append(handover.item)
            assert place is not None
            place.go_straight()
            await until(lambda: len(lost) == 2)
            return None
        if ask_order.is_ask(handover.item):
            await hold.wait()
        return await real(universe, held, handover, done, place)

    async with memory_kit.hosting(app) as host:
        here = await host.ensure("w", app)
        await here.ask(Notes())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(send_door, "_hand_over", losing)
            asking = asyncio.ensure_future(here.ask(Notes()))
            sending = asyncio.ensure_future(here.send(Note(0)))
            await until(lambda: len(lost) == 2)
            for _ in range(50):
                await asyncio.sleep(0)
            hold.set()
            assert await asyncio.wait_for(asking, 20) == []
            await asyncio.wait_for(sending, 20)
        assert await here.ask(Notes(), timeout=20) == [0]


async def test_many_asks_at_once(memory_kit: Kit) -> None:
    async with memory_kit.hosting(app) as host:
        here = await host.ensure("w", app)
        answers = [asyncio.ensure_future(here.ask(Notes())) for _ in range(500)]
        assert await asyncio.wait_for(asyncio.gather(*answers), 60) == [[]] * 500
        assert not host._connection.arrivals._lines


async def test_places_in_line() -> None:
    """Asks leave in any order; each waits for those before it alone."""
    line = ask_order.AskLine()
    first, second, send, third = (ask_order.AskPlace(line, is_ask=each) for each in (True, True, False, True))
    assert not send.may_be_blocked
    first.step_aside()
    straight = [asyncio.ensure_future(each.wait_straight()) for each in (send, third)]
    through = asyncio.ensure_future(second.wait_through())
    await asyncio.sleep(0)
    first.go_straight()
    await asyncio.sleep(0)
    assert not any(each.done() for each in (*straight, through))  # the second is aside, and waits for the first
    first.leave()
    await asyncio.wait_for(through, 60)
    second.leave()
    await asyncio.wait_for(asyncio.gather(*straight), 60)
    third.leave()
    assert not line.asks
    assert not line.asides
    assert ask_order.is_ask(inbox.Control("run", payload.EMPTY, "c"))
    assert not ask_order.is_ask(inbox.InboxEvent("Note", payload.EMPTY))
