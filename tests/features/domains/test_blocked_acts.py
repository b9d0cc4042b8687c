"""Callers of an intent that waits for a person are told so, with the command to type, and wait on: in the process that
runs the world, and in any other.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import worldline as wl
from tests import aio
from tests.features.domains.shop import Order
from tests.kits.kit import Kit
from worldline.client import world_answers
from worldline.features.domains import halted_acts
from worldline.runtime import world_reader

ONCE = wl.Retry(attempts=1, on_exhausted="park")
WHERE = ["here", "elsewhere"]
PARKED = (
    r"effect charge \w{12} is parked after attempt 1: .*the till is locked; "
    r"type `worldline effect retry \w{12} --store .*`, or `worldline effect answer"
)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_answers, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(halted_acts, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(world_reader, "WAIT_MS", 100)


def program(retry: wl.Retry) -> wl.Program:
    app = wl.Program("p")

    @app.effect(retry=retry)
    async def charge(card: str, cents: int) -> str:
        raise ValueError("the till is locked")

    app.domain(keyed=True, name="Order")(Order)
    return app


@asynccontextmanager
async def caller(kit: Kit, where: str, retry: wl.Retry = ONCE) -> AsyncIterator[wl.World]:
    """A world with an order "o" to be paid, as a caller has it: in the process that hosts it, or elsewhere."""
    app = program(retry)
    async with kit.hosting(app) as host:
        world = await host.ensure("w", app)
        await world.act(Order.fill(5), key="o")
        if where == "here":
            yield world
        else:
            async with kit.hosting() as client:
                yield client.world("w")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """By the caller's log."""
    return [each.getMessage() for each in caplog.records if each.name == "worldline"]


async def told(caplog: pytest.LogCaptureFixture, *, count: int = 1) -> list[str]:
    async def enough() -> bool:
        return len(said(caplog)) >= count

    await aio.until(enough)
    return said(caplog)


@pytest.mark.parametrize("id", [None, "pay-1"], ids=["drawn", "chosen"])
@pytest.mark.parametrize("where", WHERE)
async def test_a_caller_is_told_and_goes_on_when_a_person_has_helped(
    memory_kit: Kit, where: str, id: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with caller(memory_kit, where) as world:
        paying = asyncio.create_task(world.act(Order.pay("tok"), key="o", id=id))
        [line] = await told(caplog)
        assert re.match(rf"intent '{id or '[0-9a-f]{32}'}' \(Order.pay\) of world 'w' waits: {PARKED}", line)
        [effect] = await world.effects()
        await effect.answer("by hand")
        assert (await paying).state.receipt == "by hand"
        assert len(said(caplog)) == 1, "it is said once"


async def test_elsewhere_it_is_said_at_once(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By what the journal says: the next look would be in an hour."""
    monkeypatch.setattr(halted_acts, "LOOK_SECONDS", 3600)
    async with caller(memory_kit, "elsewhere") as world:
        paying = asyncio.create_task(world.act(Order.pay("tok"), key="o"))
        assert len(await told(caplog)) == 1
        paying.cancel()


@pytest.mark.parametrize("where", WHERE)
async def test_one_that_waits_in_line_is_told_what_it_waits_behind(
    memory_kit: Kit, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with caller(memory_kit, where) as world:
        paying = asyncio.create_task(world.act(Order.pay("tok"), key="o", id="first"))
        await told(caplog)
        filling = asyncio.create_task(world.act(Order.fill(7), key="o", id="second"))
        [_, line] = await told(caplog, count=2)
        assert re.match(rf"intent 'second' \(Order.fill\) of world 'w' waits behind intent 'first': {PARKED}", line)
        assert (await world.act(Order.fill(8), key="other", timeout=10)).state.cents == 8, "another cell goes on"
        await world.abandon(Order, "first", key="o")
        assert (await paying).status == "error"
        assert (await filling).state.cents == 7


@pytest.mark.parametrize("where", WHERE)
async def test_a_dry_fork_says_what_waits_to_be_answered(
    memory_kit: Kit, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with caller(memory_kit, where) as world:
        fork = await world.fork("f")
        paying = asyncio.create_task(fork.act(Order.pay("tok"), key="o"))
        [line] = await told(caplog)
        assert re.match(r".*of world 'f' waits: .*the world is a dry fork.*`worldline effect answer", line)
        paying.cancel()


async def test_one_that_is_tried_again_is_said_elsewhere(memory_kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    """In the process that performs it, the host's log says so."""
    async with caller(memory_kit, "elsewhere", wl.Retry(initial_delay=60)) as world:
        paying = asyncio.create_task(world.act(Order.pay("tok"), key="o"))
        [line] = await told(caplog)
        assert re.match(r".*waits: attempt 1 of effect charge .*`worldline effect retry \w{12} --store .*`", line)
        paying.cancel()
