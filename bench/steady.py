"""A store that stays at one size: `python -m bench.steady --json`

Events through many worlds, with entries that are not kept for ever and a janitor that collects garbage. The store is
measured at a tenth of the events and at the end; then every world is restored in another process. By default 100,000
events; `--events 1000000` is the dose that the figures in the README are of.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import worldline as wl
from worldline.api import wiring
from worldline.bench.bench_workloads import Added, EventCounter, app
from worldline.client import connection
from worldline.client.world_handle import Handle
from worldline.keys import keyspace_table
from worldline.model.settings import JanitorSettings, Settings, WorkerSettings
from worldline.runtime import world_restore
from worldline.store import kv

RESTORE = "--restore"
SENDERS = 64
SIZE_RATIO_MAX = 2.0
RESTORE_MS_MAX = 100.0
WINDOW_MS = 1_000
PAGE = 10_000


def settings(each: int) -> Settings:
    """A world is saved five times, and compacted two or three times, by `each` events: until the first measure."""
    each = max(20, each)
    return Settings(
        dedupe_window_ms=WINDOW_MS,
        worker=WorkerSettings(
            snapshot_entries=each // 5,
            segment_entries=each // 3,
            segment_margin=each // 20,
            snapshots_kept=2,
            journal_kept_ms=2 * WINDOW_MS,
        ),
        janitor=JanitorSettings(
            turn_ms=100, round_ms=2_000, prove_ms=0, collect_ms=5_000, collect_grace_ms=0, collect_rest_ms=20
        ),
    )


def main() -> None:
    if RESTORE in sys.argv:
        print(json.dumps(asyncio.run(_restore(sys.argv[-2], int(sys.argv[-1])))))
        return
    asked = argparse.ArgumentParser(prog="python -m bench.steady", description=(__doc__ or "").split("\n", 1)[0])
    asked.add_argument("--events", type=int, default=100_000)
    asked.add_argument("--worlds", type=int, default=100)
    asked.add_argument("--json", action="store_true")
    given = asked.parse_args()
    with tempfile.TemporaryDirectory(prefix="worldline-steady-") as folder:
        found = asyncio.run(_fill(folder, given.events, given.worlds))
        command = [sys.executable, "-m", "bench.steady", RESTORE, folder, str(given.worlds)]
        found["restore"] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    ratio = found["end"]["disk_mib"] / found["tenth"]["disk_mib"]
    found["ratio"] = round(ratio, 3)
    found["ok"] = ratio <= SIZE_RATIO_MAX and found["restore"]["most_ms"] <= RESTORE_MS_MAX
    print(json.dumps(found) if given.json else json.dumps(found, indent=2))


async def _fill(folder: str, events: int, count: int) -> dict[str, Any]:
    began = time.monotonic()
    async with wiring.open(folder, host=app, settings=settings(events // count // 10)) as link:
        universe = wl.Universe(link)
        worlds = [await universe.ensure(f"w-{number}", app) for number in range(count)]
        sizes = [await _send(worlds, events // 10, link, folder)]
        for _ in range(9):
            sizes.append(await _send(worlds, events // 10, link, folder))
            print(json.dumps(sizes[-1]), file=sys.stderr, flush=True)
        total = sum([(await world.state(EventCounter)).total for world in worlds])
        assert total == events // 10 * 10, "an event was lost or taken twice"
    return {
        "events": events,
        "worlds": count,
        "seconds": round(time.monotonic() - began, 1),
        "tenth": sizes[0],
        "end": sizes[-1],
        "disk_mib": [each["disk_mib"] for each in sizes],
    }


async def _send(worlds: list[wl.World], count: int, link: connection.Connection, folder: str) -> dict[str, Any]:
    async def sender(first: int) -> None:
        for number in range(first, count, SENDERS):
            await worlds[number % len(worlds)].send(Added(1))

    await asyncio.gather(*(sender(first) for first in range(SENDERS)))
    return await _size(link, folder)


async def _size(link: connection.Connection, folder: str) -> dict[str, Any]:
    """What the store takes on disk, and the bytes of what is in it, by kind."""
    kinds: dict[str, int] = {}
    begin = b"\x00"
    while True:
        page = (await link.store.engine.read(kv.Range(begin, b"\xff", count_max=PAGE))).page(0)
        for key, raw in page.items:
            kind = keyspace_table.metric_of(key)
            kinds[kind] = kinds.get(kind, 0) + len(key) + len(raw)
        if not page.more:
            break
        begin = page.items[-1][0] + b"\x00"
    disk = _disk_bytes(folder)
    most = sorted(kinds.items(), key=lambda each: -each[1])[:6]
    return {
        "disk_mib": round(disk / 2**20, 2),
        "live_mib": round(sum(kinds.values()) / 2**20, 2),
        "kib": {kind: size // 1024 for kind, size in most},
    }


def _disk_bytes(folder: str) -> int:
    return sum(each.stat().st_blocks * 512 for each in Path(folder).rglob("*") if each.is_file())


async def _restore(folder: str, count: int) -> dict[str, Any]:
    """Every world, in a process that has read none of them."""
    taken: list[float] = []
    async with wiring.open(folder) as link:
        with ThreadPoolExecutor(1) as executor:
            for number in range(count):
                at = await Handle(link, f"w-{number}").address()
                began = time.perf_counter()
                done = await world_restore.restore(link.store.engine, link.blobs, app, at, executor)
                taken.append(1000 * (time.perf_counter() - began))
                done.machine.close()
    return {"median_ms": round(statistics.median(taken), 2), "most_ms": round(max(taken), 2)}


if __name__ == "__main__":
    main()
