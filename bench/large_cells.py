"""What one event costs a cell that holds much, against a cell for each item: `python -m bench.large_cells --json`

A shelf of N books, about 100 bytes each. `one`: one cell holds them all, in a dict. `keyed`: a cell for each book. Each
event changes one book. Per event: CPU time of the process, what its commit writes, and the longest step. The store is
in memory, so no disk is measured; no state is saved meanwhile, which writes a changed cell as a whole.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import statistics
import time
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import worldline as wl
from worldline.model.settings import WorkerSettings
from worldline.store import kv

SIZES = (10, 100, 1_000, 10_000)
EVENTS = 60
TEXT = 70  # characters of a book, drawn: they do not compress as one text would

app = wl.Program("shelf")


@dataclass(frozen=True)
class Put:
    key: str
    text: str


@dataclass(frozen=True)
class PutKeyed:
    key: str
    text: str


@dataclass(frozen=True)
class Fill:
    books: dict[str, str]


@app.reducer
@dataclass
class Shelf:
    books: dict[str, str] = field(default_factory=dict)

    @wl.on
    def fill(self, event: Fill) -> None:
        self.books.update(event.books)

    @wl.on
    def put(self, event: Put) -> None:
        self.books[event.key] = event.text


@app.reducer(key="key")
@dataclass
class Book:
    text: str = ""

    @wl.on
    def put(self, event: PutKeyed) -> None:
        self.text = event.text


def main() -> None:
    asked = argparse.ArgumentParser(prog="python -m bench.large_cells", description=(__doc__ or "").split("\n", 1)[0])
    asked.add_argument("--events", type=int, default=EVENTS, help="of each world")
    asked.add_argument("--json", action="store_true")
    given = asked.parse_args()
    found = [asyncio.run(_measure(shape, size, given.events)) for size in SIZES for shape in ("one", "keyed")]
    if given.json:
        print(json.dumps(found))
        return
    for each in found:
        print("  ".join(f"{name} {value}" for name, value in each.items()))


async def _measure(shape: str, size: int, events: int) -> dict[str, Any]:
    draws = random.Random(size)
    books = {f"isbn-{each:06d}": _text(draws) for each in range(size)}
    settings = wl.Settings(worker=WorkerSettings(snapshot_entries=10**9, snapshot_ms=10**9))
    async with wl.open("memory://", host=app, settings=settings) as universe:
        world = await universe.ensure("w", app)
        filling = [Fill(books)] if shape == "one" else [PutKeyed(key, text) for key, text in books.items()]
        for each in filling:
            await world.send(each)
        await (await world.send(PutKeyed("last", ""))).applied()
        written, times = 0, []
        engine = universe._connection.store.engine
        commit = engine.commit

        async def counted(*batches: kv.Batch) -> list[kv.Outcome]:
            nonlocal written
            for batch in batches:
                written += sum(len(put.value) for put in batch.puts.values())
                written += sum(len(append.value) for append in batch.appends)
            return await commit(*batches)

        with mock.patch.object(engine, "commit", counted):
            cpu = _cpu()
            for _ in range(events):
                key, text = draws.choice(list(books)), _text(draws)
                begun = time.perf_counter()
                await (await world.send(Put(key, text) if shape == "one" else PutKeyed(key, text))).applied()
                times.append(time.perf_counter() - begun)
            cpu = _cpu() - cpu
    return {
        "shape": shape,
        "books": size,
        "cell_kb": round(size * 100 / 1000) if shape == "one" else 0.1,
        "cpu_ms": round(cpu / events * 1000, 2),
        "written_bytes": round(written / events),
        "median_ms": round(statistics.median(times) * 1000, 2),
        "longest_ms": round(max(times) * 1000, 1),
    }


def _text(draws: random.Random) -> str:
    return "".join(draws.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(TEXT))


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
