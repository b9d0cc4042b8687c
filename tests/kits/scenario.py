"""The canonical scenario: an order with everything that can be open at once, and a bank that it talks to.

`drive` may be run again and again on the same store, by any process: whatever it sends has an id, so it goes on where
it was interrupted. `outside` is what the world outside has seen: for each effect the idempotency keys it came with.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from worldline.api.universe_api import Universe

outside: dict[str, list[str]] = {}


@dataclass(frozen=True)
class Deposited:
    account: str
    cents: int


@dataclass(frozen=True)
class Withdraw(wl.Request[int]):
    account: str
    cents: int


@dataclass(frozen=True)
class Noted:
    account: str
    text: str


@dataclass(frozen=True)
class Ticked:
    order: str


@dataclass(frozen=True)
class Approved:
    order: str


@dataclass(frozen=True)
class Sold:
    order: str
    cents: int


@dataclass(frozen=True)
class Poison:
    text: str


bank = wl.Program("bank")
shop = wl.Program("shop")


@bank.reducer(key="account")
@dataclass
class Account:
    cents: int = 0
    notes: list[str] = field(default_factory=list)

    @wl.on
    def deposited(self, event: Deposited) -> None:
        self.cents += event.cents

    @wl.on
    def withdraw(self, event: Withdraw) -> int:
        if event.cents > self.cents:
            raise wl.Refused("insufficient funds")
        self.cents -= event.cents
        return self.cents

    @wl.on
    def noted(self, event: Noted) -> None:
        self.notes.append(event.text)


@shop.reducer(key="order")
@dataclass
class Sale:
    cents: int = 0
    ticks: int = 0

    @wl.on
    def sold(self, event: Sold) -> None:
        self.cents += event.cents

    @wl.on
    def ticked(self, event: Ticked) -> None:
        self.ticks += 1


@shop.reducer()
@dataclass
class Desk:
    taken: int = 0

    @wl.on
    def poison(self, event: Poison) -> None:
        self.taken += 1
        raise ValueError(f"cannot take {event.text}")


def seen_outside(name: str) -> None:
    outside.setdefault(name, []).append(wl.attempt().key)


@shop.effect(retry=wl.Retry(initial_delay=0.01))
async def reserve(order: str) -> str:
    seen_outside("reserve")
    if wl.attempt().number == 1:
        raise ConnectionError("the first attempt always fails")
    return f"reserved {order}"


@shop.effect
def ship(order: str) -> str:
    seen_outside("ship")
    return f"parcel of {order}"


@shop.effect
async def refund(order: str) -> str:
    seen_outside("refund")
    return f"refunded {order}"


@shop.workflow
async def parcel(order: str) -> str:
    return await ship(order)


@shop.workflow
async def order(name: str, cents: int) -> list[str]:
    told = [await reserve(name)]
    await wl.sleep(0.01)
    wl.after(0.01, Ticked(name))
    await wl.wait(Ticked, where=lambda event: event.order == name)
    try:
        await wl.wait(Approved, timeout=0.02)
    except TimeoutError:
        told.append("nobody approved it")
    told.append(f"{await wl.ask('bank', Withdraw('alice', cents))} left")
    try:
        await wl.ask("bank", Withdraw("alice", 1_000_000))
    except wl.Refused:
        async with wl.scope(shield=True):
            told.append(await refund(name))
    await wl.send("bank", Noted("alice", name))
    told.append(await parcel(name))
    try:
        await wl.send("nowhere", Noted("alice", name))
    except wl.EffectFailed as error:
        told.append(error.code)
    wl.emit(Sold(name, cents))
    told.append(str(wl.uuid()))
    return told


PROGRAMS = (bank, shop)
KEYS = {"reserve": 1, "ship": 1, "refund": 1}


async def drive(universe: Universe) -> tuple[kits.Ends, kits.Ends]:
    """The whole story, to its end. Returns where both worlds have got to."""
    till = await universe.ensure("bank", bank)
    store = await universe.ensure("shop", shop)
    await (await till.send(Deposited("alice", 100), id="deposit")).applied()
    told = await kits.run(store, order("lamp", 30), id="order-lamp")
    assert told[:-1] == [
        "reserved lamp",
        "nobody approved it",
        "70 left",
        "refunded lamp",
        "parcel of lamp",
        "undeliverable",
    ]
    await aio.journaled(await store.send(Poison("poison"), id="poison"))
    await aio.journaled(await store.send(Approved("lamp"), to="order-lamp", id="late"))
    await settled(universe, till, store)
    engine = universe._connection.store.engine
    return await kits.ends(till, engine), await kits.ends(store, engine)


async def settled(universe: Universe, *worlds: wl.World) -> None:
    """Nothing is open, nothing is unread."""
    engine = universe._connection.store.engine

    async def quiet() -> bool:
        for world in worlds:
            at = await world._handle.address()
            if await kits.unread(engine, at) or await kits.opened(engine, at):
                return False
        return True

    await aio.until(quiet)
