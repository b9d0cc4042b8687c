"""Things that happen again and again: a garden that waters itself.

    python examples/schedule.py [FOLDER]

The gardener's `every` is a few tenths of a second here, so that you can watch; the weekly report has a cron expression
and a time zone. In the middle no process hosts the garden for a while: what was missed then happens once, and the
rhythm stays.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime

import worldline as wl

app = wl.Program("garden")

EVERY_SECONDS = 0.25


@dataclass(frozen=True)
class Planted:
    what: str


@dataclass(frozen=True)
class Watering:
    pass


@app.reducer()
@dataclass
class Garden:
    plants: int = 0
    waterings: int = 0

    @wl.on
    def planted(self, event: Planted) -> None:
        self.plants += 1
        wl.schedule("water", Watering(), every=EVERY_SECONDS)  # already there: nothing changes

    @wl.on
    def watering(self, event: Watering) -> None:
        self.waterings += 1
        if self.waterings == 9:
            wl.unschedule("water")


@app.workflow
async def report() -> int:
    return wl.state(Garden).waterings


async def watered(world: wl.World, times: int) -> None:
    """Wait until it has been watered so often, and say when that was."""
    while (await world.state(Garden)).waterings < times:
        await asyncio.sleep(0.05)
    print(f"  watered {times} times by {datetime.now(UTC):%H:%M:%S.%f}"[:-4])


async def main(folder: str) -> None:
    async with wl.open(folder, host=app) as universe:
        world = await universe.ensure("garden", app)
        for what in ("beans", "peas"):
            await world.send(Planted(what), id=what)
        await world.schedule("report", report(), cron="0 9 * * 1", tz="Europe/Lisbon")
        for each in await world.schedules():
            rhythm = f"every {each.every.total_seconds():g} s" if each.every else f"at {each.cron!r} in {each.tz}"
            print(f"{each.id}: {each.what} {rhythm}, next at {each.next.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC")
        await watered(world, 3)

    print("no process hosts the garden for a while")
    await asyncio.sleep(EVERY_SECONDS * 4)

    async with wl.open(folder, host=app) as universe:
        world = universe.world("garden")
        for times in (4, 6, 9):
            await watered(world, times)
        print(f"and the report, asked for by hand, says {await world.run(report())}")
        print(f"left on the calendar: {[each.id for each in await world.schedules()]}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="garden-")))
