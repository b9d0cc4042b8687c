"""A template that seeds a thousand worlds: what was done once is there in each of them, and nothing is copied.

    python examples/template.py [FOLDER [COUNT]]

A shop is set up in a world of its own: a price list is fetched, a till is filled. Every other shop begins as a fork of
it. A seeded world is live: it has its own effects, its own random numbers, and no way back into the template.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from dataclasses import dataclass, field

import worldline as wl

app = wl.Program("shops")

COUNT = 1_000
AT_ONCE = 50


@dataclass(frozen=True)
class Priced:
    prices: dict[str, int]


@dataclass(frozen=True)
class Sell(wl.Request[int]):
    """Sell something; answered with what is in the till then."""

    what: str


@app.reducer
@dataclass
class Shop:
    prices: dict[str, int] = field(default_factory=dict)
    till: int = 0
    lucky: int = 0

    @wl.on
    def priced(self, event: Priced) -> None:
        self.prices = event.prices

    @wl.on
    def sell(self, request: Sell) -> int:
        self.till += self.prices[request.what]
        self.lucky = wl.random().randrange(10**6)  # the number of a raffle: every shop draws its own
        return self.till


@app.effect
async def fetch_prices() -> dict[str, int]:
    print("    fetching the price list, which takes long")
    return {"tea": 300, "cake": 450}


@app.workflow
async def set_up() -> int:
    prices = await fetch_prices()
    wl.emit(Priced(prices))
    return len(prices)


async def main(folder: str, count: int = COUNT) -> None:
    async with wl.open(folder, host=app) as universe:
        template = await universe.ensure("template", app)
        print(f"the template has {await template.run(set_up(), id='set-up')} prices")

        names = [f"shop-{number}" for number in range(count)]
        for start in range(0, count, AT_ONCE):
            some = names[start : start + AT_ONCE]
            await asyncio.gather(*(universe.create(name, app, seed="template") for name in some))
        print(f"{count} shops have begun where the template was")

        first, last = universe.world(names[0]), universe.world(names[-1])
        print(f"  {names[0]} sells tea: {await first.ask(Sell('tea'))} in its till")
        print(f"  {names[-1]} sells cake: {await last.ask(Sell('cake'))} in its till")
        same = (await first.state(Shop)).lucky == (await last.state(Shop)).lucky
        print(f"  they have drawn {'the same number' if same else 'different numbers'}")
        print(f"the till of the template: {(await template.state(Shop)).till}")


if __name__ == "__main__":
    given = sys.argv[1:]
    asyncio.run(main(given[0] if given else tempfile.mkdtemp(prefix="shops-"), int(given[1]) if given[1:] else COUNT))
