"""A race between two worlds that a test is unlikely to find, and the simulator finds.

    python examples/lost_update.py [FOLDER]
    worldline simulate examples/lost_update.py --seeds 1000
    worldline simulate examples/lost_update.py:fixed --seeds 100

Two cashiers share a till. Each is a world, and so is the till. `count_in` asks the till what is in it and then says
what is in it now: between the two, the other cashier may have done the same, and one sale is lost. They take turns, so
that never happens; unless a machine is late. `pay_in` says what was paid and lets the till add.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass

import worldline as wl

app = wl.Program("till")

SALES = 4
CENTS = 250


@dataclass(frozen=True)
class Balance(wl.Request[int]):
    """What is in the till?"""


@dataclass(frozen=True)
class Counted:
    """So much is in the till now."""

    cents: int


@dataclass(frozen=True)
class Paid:
    """So much was put into the till."""

    cents: int


@app.reducer()
@dataclass
class Till:
    cents: int = 0

    @wl.on
    def balance(self, asked: Balance) -> int:
        return self.cents

    @wl.on
    def counted(self, event: Counted) -> None:
        self.cents = event.cents

    @wl.on
    def paid(self, event: Paid) -> None:
        self.cents += event.cents


@app.workflow
async def count_in(cents: int) -> None:
    before = await wl.ask("till", Balance())
    await wl.send("till", Counted(before + cents))  # the race: much may have happened since `before`


@app.workflow
async def pay_in(cents: int) -> None:
    await wl.send("till", Paid(cents))


async def sell(universe: wl.Universe, sale: wl.Workflow[[int], None], *, gap_seconds: float) -> None:
    """Two cashiers take turns. Neither waits for the other."""
    await universe.ensure("till", app)
    cashiers = [await universe.ensure(name, app) for name in ("anna", "ben")]
    for number in range(SALES):
        _ = await cashiers[number % 2].start(sale(CENTS), id=f"sale {number}")
        await asyncio.sleep(gap_seconds)


async def check(universe: wl.Universe) -> None:
    till = await universe.world("till").state(Till)
    assert till.cents == SALES * CENTS, f"{SALES} sales at {CENTS} and {till.cents} in the till"


async def scenario(universe: wl.Universe) -> AsyncIterator[None]:
    """With the race. Time is virtual: a gap of ten seconds costs nothing."""
    await sell(universe, count_in, gap_seconds=10)
    yield  # from here on nothing breaks any more, and everything has come to rest
    await check(universe)


async def fixed(universe: wl.Universe) -> AsyncIterator[None]:
    """Without."""
    await sell(universe, pay_in, gap_seconds=10)
    yield
    await check(universe)


async def main(folder: str) -> None:
    for sale in (count_in, pay_in):
        print(f"{sale.name}, with nothing in the way:")
        async with wl.open(f"{folder}/{sale.name}", host=app) as universe:
            await sell(universe, sale, gap_seconds=0.5)
            await check(universe)
            print(f"  {SALES} sales, {(await universe.world('till').state(Till)).cents} cents in the till")
    print("no test would have told them apart; now type")
    print("  worldline simulate examples/lost_update.py")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="till-")))
