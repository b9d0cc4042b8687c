"""A program with something of every kind open, on a real clock; and what is looked at in forks of its worlds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import worldline as wl
from tests.features.forks.everything_open import Added, Balance
from worldline.client.world_handle import Handle
from worldline.features.proofs import calls as proof_calls
from worldline.inspect import doctor, verify
from worldline.model.journal import Kind

SECONDS = 60.0


class Shop:
    """A program with something of every kind open: an effect, a question, a timer, a child run, a wait. Its effects
    count their calls and answer when `gate` is open.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.gate = asyncio.Event()
        self.program = app = wl.Program("shop")
        shop = self

        @app.reducer
        @dataclass
        class Till:
            cents: int = 0
            drawn: int = 0

            @wl.on
            def added(self, event: Added) -> None:
                self.cents += event.cents
                self.drawn = wl.random().randrange(2**32)

            @wl.on
            def balance(self, request: Balance) -> int:
                return self.cents

        @app.effect(name="charge", retry=wl.Retry(attempts=1))
        async def charge(order: str) -> str:
            shop.calls.append((order, wl.attempt().key))
            await shop.gate.wait()
            return f"paid {order}"

        @app.workflow(name="buy")
        async def buy(order: str) -> list[str]:
            first = wl.uuid().hex
            paid = await charge(order)
            await wl.sleep(0.05)
            return [paid, first, wl.uuid().hex]

        @app.workflow(name="nap")
        async def nap() -> str:
            await wl.sleep(0.5)
            return "slept"

        @app.workflow(name="parent")
        async def parent() -> str:
            return f"child {await nap()}"

        @app.workflow(name="asks")
        async def asks() -> int:
            return await wl.ask("bank", Balance())

        @app.workflow(name="tells")
        async def tells() -> str:
            await wl.sleep(0.3)
            await wl.send("bank", Added(1))
            return "told"

        @app.workflow(name="waits")
        async def waits() -> int:
            return (await wl.wait(Added)).cents

        self.Till, self.charge, self.buy = Till, charge, buy
        self.parent, self.asks, self.tells, self.waits = parent, asks, tells, waits


async def until(holds: Callable[[], Any], seconds: float = SECONDS) -> None:
    """Wait until something is true."""
    async with asyncio.timeout(seconds):
        while True:
            found = holds()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return
            await asyncio.sleep(0.01)


async def result(world: wl.World, run: str) -> Any:
    async with asyncio.timeout(SECONDS):
        return await (await world.attach(run)).result()


async def own(world: wl.World) -> list[Kind]:
    """The kinds of the entries that are a fork's own."""
    lineage = await world.lineage()
    assert lineage is not None
    return [each.kind for each in await world.journal(above=lineage.height)]


async def check(universe: wl.Universe, *names: str) -> None:
    """Everything stored is whole, the queues say what the states say, and the code does the same again."""
    connection = universe._connection
    for name in names:
        world = Handle(connection, name)
        await verify.verify(connection, await world.address())
        proof = await proof_calls.prove(world)
        assert proof.holds, proof.difference
        assert proof.proved == proof.steps
    assert (await doctor.examine(connection, repair=False)).findings == []
