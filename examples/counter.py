"""A counter: a class folded from events, asked questions, and looked at as it was.

    python examples/counter.py [FOLDER]

Run it twice on the same folder: it continues counting where it stopped.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from dataclasses import dataclass

import worldline as wl

app = wl.Program("counter")


@dataclass(frozen=True)
class Added:
    apples: int


@dataclass(frozen=True)
class Take(wl.Request[int]):
    """Take apples out; answered with how many are left."""

    apples: int


@app.reducer()
@dataclass
class Basket:
    apples: int = 0
    visits: int = 0

    @wl.on
    def added(self, event: Added) -> None:
        self.apples += event.apples
        self.visits += 1

    @wl.on
    def take(self, event: Take) -> int:
        if event.apples > self.apples:
            raise wl.Refused(f"there are only {self.apples}")
        self.apples -= event.apples
        return self.apples


async def main(folder: str) -> None:
    async with wl.open(folder, host=app) as universe:
        world = await universe.ensure("basket", app)
        print(f"the basket holds {(await world.state(Basket)).apples} apples")

        for apples in (3, 4, 5):
            sent = await world.send(Added(apples))
            print(f"  put in {apples}: journaled at height {await sent.applied()}")
        before = (await world.head()).height

        print(f"  take 7: {await world.ask(Take(7))} are left")
        try:
            await world.ask(Take(100))
        except wl.Refused as no:
            print(f"  take 100: refused, {no}")

        now, then = await world.state(Basket), await world.state(Basket, at=before)
        print(f"now {now.apples} apples; at height {before} there were {then.apples}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="counter-")))
