"""What a fork costs, and that it does not grow: `python -m bench.fork --json`

On an embedded store: worlds of few and many entries, of little and much state, forked one after the other by a client
that hosts nothing. Sides take turns, so whatever else the machine does concerns both. Bytes are logical: the sizes of
all keys and values of the store, before and after. `--whole` takes the sizes that are wanted; without it they are
smaller, and it takes some seconds.

Forks of a world of some megabytes are counted twice: when they are made, and after each was hosted once and has saved a
state of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from dataclasses import dataclass

import worldline as wl
from worldline.api.universe_api import Universe
from worldline.layers.history import history_line
from worldline.model.settings import Settings, WorkerSettings
from worldline.runtime import world_reader
from worldline.store import kv

CELL = 100_000  # bytes of one cell
AT_ONCE = 100
WEIGHED = 10  # forks whose bytes are counted
WHOLE = Settings(worker=WorkerSettings(segment_entries=0))  # all states stay, so that worlds can be forked anywhere

app = wl.Program("forked")


@dataclass(frozen=True)
class Added:
    number: int


@dataclass(frozen=True)
class Kept:
    name: str
    size: int


@app.reducer()
@dataclass
class Sum:
    total: int = 0

    @wl.on
    def added(self, event: Added) -> None:
        self.total += event.number


@app.reducer(key="name")
@dataclass
class Text:
    text: str = ""

    @wl.on
    def kept(self, event: Kept) -> None:
        words = [wl.random().randbytes(16).hex() for _ in range(event.size // 32)]
        self.text = "".join(words)


async def grown(universe: Universe, name: str, *, entries: int = 0, state: int = 0) -> None:
    """A world with so many entries, or so many bytes of state."""
    world = await universe.create(name, app)
    sent = None
    for first in range(0, entries, AT_ONCE):
        several = [world.send(Added(number)) for number in range(first, min(entries, first + AT_ONCE))]
        sent = (await asyncio.gather(*several))[-1]
        await sent.applied(600)
    for number in range(state // CELL):
        sent = await world.send(Kept(f"cell-{number}", CELL))
        if number % 10 == 0:
            await sent.applied(600)
    if sent is not None:
        await sent.applied(600)
    await world.snapshot()
    await (await world.send(Added(1))).applied()  # something above the snapshot


async def bytes_of(universe: Universe) -> int:
    """The logical size of everything in the store."""
    engine, begin, size = universe._connection.store.engine, b"\x00", 0
    while True:
        page = (await engine.read(kv.Range(begin, b"\xff", count_max=10_000, bytes_max=16 * 2**20))).page(0)
        size += sum(len(key) + len(value) for key, value in page.items)
        if not page.more:
            return size
        begin = page.items[-1][0] + b"\x00"


async def cost(universe: Universe, names: list[str], *, count: int, half: bool = False) -> dict[str, dict[str, float]]:
    """The median time and the bytes of a fork of each world, one fork of each in turn. `half`: at half its height."""
    times: dict[str, list[float]] = {name: [] for name in names}
    at = {name: (await universe.world(name).head()).height // 2 if half else None for name in names}
    for number in range(count):
        for name in names:
            began = time.perf_counter()
            await universe.world(name).fork(f"{name}-{half}-{number}", at=at[name])
            times[name].append(time.perf_counter() - began)
    found: dict[str, dict[str, float]] = {}
    for name in names:
        before = await bytes_of(universe)
        for number in range(WEIGHED):
            await universe.world(name).fork(f"{name}-{half}-weighed-{number}", at=at[name])
        written = await bytes_of(universe) - before
        found[name] = {
            "median_ms": round(statistics.median(times[name]) * 1000, 3),
            "best_ms": round(min(times[name]) * 1000, 3),
            "bytes": round(written / WEIGHED),
        }
    return found


def grows(found: dict[str, dict[str, float]], names: list[str]) -> dict[str, float]:
    """The larger world, of the smaller."""
    small, large = (found[name] for name in names)
    return {what: round(large[what] / small[what], 2) for what in small}


async def room(url: str, *, megabytes: int, forks: int, hosted: int) -> dict[str, object]:
    """How much forks add to a store with one world in it: made, and hosted once."""
    async with wl.open(url, host=app, settings=WHOLE) as universe:
        await grown(universe, "template", state=megabytes * 1_000_000)
        await universe.world("template").pause()
    async with wl.open(url) as universe:
        before = await bytes_of(universe)
        for number in range(forks):
            await universe.world("template").fork(f"fork-{number}")
            if number >= hosted:
                await universe.world(f"fork-{number}").pause()
        made = await bytes_of(universe)
    settings = Settings(worker=WorkerSettings(max_worlds_warm=8))
    async with wl.open(url, host=app, settings=settings) as universe:
        for number in range(hosted):
            await (await universe.world(f"fork-{number}").send(Added(1))).applied(600)
            await _saved(universe, f"fork-{number}")
        after = await bytes_of(universe)
    return {
        "megabytes": megabytes,
        "forks": forks,
        "added_percent": round(100 * (made - before) / before, 2),
        "bytes_each": round((made - before) / forks),
        "hosted": hosted,
        "hosted_bytes_each": round((after - made) / hosted),
        "hosted_percent_of_all": round(100 * (made - before + (after - made) * forks / hosted) / before, 2),
    }


async def _saved(universe: Universe, name: str) -> None:
    """Wait until a fork has a state of its own."""
    engine, at = universe._connection.store.engine, await universe.world(name)._handle.address()
    line = history_line.decode(at, (await engine.read(history_line.get(at))).value(0))
    async with asyncio.timeout(600):
        while (await world_reader.owned_below(engine, line, 2**40))[1] != at:  # noqa: ASYNC110 - another task saves it
            await asyncio.sleep(0.01)


async def measure(folder: str, *, whole: bool) -> dict[str, object]:
    few, many = 100, 100_000 if whole else 10_000
    little, much = 1_000_000, 100_000_000 if whole else 10_000_000
    sizes = {f"entries-{few}": few, f"entries-{many}": many}
    states = {f"state-{little}": little, f"state-{much}": much}
    async with wl.open(f"{folder}/cost", host=app, settings=WHOLE) as universe:
        for name, entries in sizes.items():
            await grown(universe, name, entries=entries)
        for name, state in states.items():
            await grown(universe, name, state=state)
    async with wl.open(f"{folder}/cost") as universe:
        for number in range(20):  # nothing is cold afterwards
            await universe.world(f"entries-{few}").fork(f"cold-{number}")
        head = await cost(universe, [*sizes, *states], count=100)
        below = await cost(universe, list(sizes), count=50, half=True)
    return {
        "head": head,
        "half_way": below,
        "grows": {
            "with_entries": grows(head, list(sizes)),
            "with_state": grows(head, list(states)),
            "with_entries_half_way": grows(below, list(sizes)),
        },
        "room": await room(f"{folder}/room", megabytes=10, forks=1_000 if whole else 200, hosted=20 if whole else 5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--whole", action="store_true", help="100,000 entries, 100 MB of state, 1,000 forks")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(folder, whole=given.whole))
    print(json.dumps(found, indent=None if given.json else 2))


if __name__ == "__main__":
    main()
