"""Worlds with many cells, and worlds with a long history: `python -m bench.cells --json`

`snapshot`: what saving a world writes after so many of its cells were touched, and how long it keeps the event loop.
`memory`: how many cells stay in memory when fewer are allowed than there are. `million`: the peak of the resident
memory of a process that makes a world of a million cells, and of one that takes it over and goes on. `restore`: a world
with a long history behind its snapshot against one with a short, by turns in one process. Every part runs in processes
of its own, on an embedded store.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

import worldline as wl
from worldline.api import wiring
from worldline.client import connection
from worldline.client.world_handle import Handle
from worldline.layers.history import saved_state
from worldline.model.settings import Settings, WorkerSettings
from worldline.runtime import world_restore
from worldline.worker.held_world import HeldWorld

CHILD = "--child"
PARTS = ("snapshot", "memory", "million", "restore")
TOUCHED = (100, 1_000)
IN_FLIGHT = 500
MEMORY_BYTES = 16 * 1024 * 1024  # allowed for cells in `memory`
MEMORY_TOUCHED = 40_000
MILLION_TOUCHED = 10_000
PEAK_MIB_MAX = 1_024
SHORT, TAIL, ROUNDS = 1_000, 200, 15  # entries behind the snapshot and above it, in `restore`
RESTORE_RATIO_MAX = 1.5
NEVER = 10**9

app = wl.Program("cells")


@dataclass(frozen=True)
class Put:
    key: str
    text: str


@app.reducer(key="key")
@dataclass
class Cell:
    text: str = ""
    times: int = field(default=0)

    @wl.on
    def put(self, event: Put) -> None:
        self.text = event.text
        self.times += 1


def main() -> None:
    if CHILD in sys.argv:
        _, _, name, url, *numbers = sys.argv
        print(json.dumps(asyncio.run(_CHILDREN[name](url, *map(int, numbers)))))
        return
    asked = argparse.ArgumentParser(prog="python -m bench.cells", description=(__doc__ or "").split("\n", 1)[0])
    asked.add_argument("--cells", type=int, default=200_000, help="of the world in `snapshot` and `memory`")
    asked.add_argument("--million", type=int, default=1_000_000, help="cells of the world in `million`")
    asked.add_argument("--every", type=int, default=100_000, help="entries between two snapshots in `million`")
    asked.add_argument("--entries", type=int, default=200_000, help="of the long history in `restore`")
    asked.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    asked.add_argument("--json", action="store_true")
    given = asked.parse_args()
    names = given.only.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        asked.error(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    counts = {"snapshot": given.cells, "memory": given.cells, "million": given.million, "restore": given.entries}
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="worldline-cells-") as folder:
        if "memory" in names and "snapshot" not in names:
            names = ["snapshot", *names]  # the world of `memory` is the one that it makes
        for name in [part for part in PARTS if part in names]:
            where = Path(folder) / ("snapshot" if name == "memory" else name)
            found[name] = _run(name, str(where), counts[name], given.every)
    print(json.dumps(found) if given.json else json.dumps(found, indent=2))


def _run(name: str, url: str, count: int, every: int) -> dict[str, Any]:
    if name == "million":
        made, kept = _child("fill", url, count, every), _child("keep", url, count)
        peak = max(made["peak_mib"], kept["peak_mib"])
        return {"made": made, "taken_over": kept, "limit_mib": PEAK_MIB_MAX, "ok": peak < PEAK_MIB_MAX}
    return _child(name, url, count)


def _child(name: str, url: str, *counts: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.cells", CHILD, name, url, *map(str, counts)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


# --- In a process of its own ------------------------------------------------------------------------------------------


async def _snapshot(url: str, count: int) -> dict[str, Any]:
    """What the first snapshot of all cells writes, and what those after a few were touched do."""
    written: dict[str, dict[str, int]] = {}
    async with wiring.open(url, host=app, settings=_settings(snapshot_entries=NEVER)) as link:
        world = await wl.Universe(link).ensure("w", app)
        await _put(world, range(count), "first")
        written["all"] = await _save(world)
        for touched in TOUCHED:
            await _put(world, random.Random(touched).sample(range(count), touched), f"touched {touched}")
            written[str(touched)] = await _save(world)
    few, more = written[str(TOUCHED[0])], written[str(TOUCHED[1])]
    times = TOUCHED[1] / TOUCHED[0]
    ok = more["bytes"] > few["bytes"] * times / 3 and few["bytes"] < written["all"]["bytes"] / 20
    return {"cells": count, "written": written, "ok": ok}


async def _memory(url: str, count: int) -> dict[str, Any]:
    """How many cells are in memory while many more than are allowed are touched."""
    most = misses = 0
    async with wiring.open(url, host=app, settings=_settings(cells_memory_max=MEMORY_BYTES)) as link:
        world = wl.World(link, "w")
        draws = random.Random(1)
        for _ in range(MEMORY_TOUCHED // IN_FLIGHT):
            await _put(world, [draws.randrange(count) for _ in range(IN_FLIGHT)], "memory")
            held = await _held(link)
            most = max(most, _cell_bytes(held))
            misses = 0 if held.cold is None else held.cold.misses
        cells, now = len((await _held(link)).machine.cells), _now_mib()
    return {
        "cells": count,
        "in_memory": cells,
        "bytes_allowed": MEMORY_BYTES,
        "bytes_most": most,
        "misses": misses,
        "peak_mib": _peak_mib(),
        "now_mib": now,
        "ok": most <= 1.25 * MEMORY_BYTES,
    }


async def _fill(url: str, count: int, every: int) -> dict[str, Any]:
    """Make the world, with snapshots as it grows."""
    began = time.monotonic()
    peak = _Peak()
    async with wiring.open(url, host=app, settings=_settings(snapshot_entries=every)) as link:
        world = await wl.Universe(link).ensure("w", app)
        await _put(world, range(count), "first")
        await world.snapshot()
        held = await _held(link)
        cells, is_cold, now = len(held.machine.cells), held.cold is not None, _now_mib()
    return {
        "cells": count,
        "in_memory": cells,
        "cold": is_cold,
        "peak_mib": _peak_mib(),
        "peaks_mib": peak.mib(),
        "now_mib": now,
        "seconds": round(time.monotonic() - began, 1),
    }


async def _keep(url: str, count: int) -> dict[str, Any]:
    """Take the world over and go on with it."""
    peak = _Peak()
    async with wiring.open(url, host=app) as link:
        world = wl.World(link, "w")
        held = await _held(link)
        restored_ms = wiring.host_of(link).worlds.restored_ms
        await _put(world, random.Random(2).sample(range(count), min(count, MILLION_TOUCHED)), "kept")
        written = await _save(world)
        cells, now = len(held.machine.cells), _now_mib()
    return {
        "restored_ms": round(restored_ms, 1),
        "touched": MILLION_TOUCHED,
        "in_memory": cells,
        "written": written,
        "peak_mib": _peak_mib(),
        "peaks_mib": peak.mib(),
        "now_mib": now,
    }


async def _restore(url: str, count: int) -> dict[str, Any]:
    """Restores of both worlds by turns. They have the same cells, and as many entries above their snapshots."""
    async with wiring.open(url, host=app, settings=_settings(snapshot_entries=NEVER)) as link:
        for name, behind in (("short", SHORT), ("long", count)):
            world = await wl.Universe(link).ensure(name, app)
            await _put(world, [number % 100 for number in range(behind)], "behind")
            await world.snapshot()
            await _put(world, [number % 100 for number in range(TAIL)], "above")
        wiring.host_of(link).abandon()
    seconds: dict[str, list[float]] = {"short": [], "long": []}
    async with wiring.open(url) as link:
        with ThreadPoolExecutor(1) as executor:
            for number in range(2 * ROUNDS):
                name = ("short", "long")[(number + number // 2) % 2]
                at = await Handle(link, name).address()
                began = time.perf_counter()
                done = await world_restore.restore(link.store.engine, link.blobs, app, at, executor)
                seconds[name].append(time.perf_counter() - began)
                assert done.entries >= TAIL
    short, long = statistics.median(seconds["short"]), statistics.median(seconds["long"])
    return {
        "behind": {"short": SHORT, "long": count},
        "short_ms": round(1000 * short, 2),
        "long_ms": round(1000 * long, 2),
        "ratio": round(long / short, 3),
        "ok": long / short <= RESTORE_RATIO_MAX,
    }


_CHILDREN: dict[str, Callable[..., Coroutine[Any, Any, dict[str, Any]]]] = {
    "snapshot": _snapshot,
    "memory": _memory,
    "fill": _fill,
    "keep": _keep,
    "restore": _restore,
}


def _settings(**changes: int) -> Settings:
    return Settings(worker=msgspec.structs.replace(WorkerSettings(snapshot_ms=NEVER), **changes))


async def _put(world: wl.World, numbers: Any, text: str) -> None:
    """An event for each of these cells."""
    waiting = list(numbers)
    for start in range(0, len(waiting), IN_FLIGHT):
        part = waiting[start : start + IN_FLIGHT]
        sent = await asyncio.gather(*(world.send(Put(f"cell {number:07}", text)) for number in part))
        await sent[-1].applied()
        if start and start % 100_000 == 0:
            print(f"{start} of {len(waiting)} cells, {_peak_mib()} MiB at most", file=sys.stderr, flush=True)


async def _save(world: wl.World) -> dict[str, int]:
    """Save a world; what had to be written for it."""
    seen: list[saved_state.SavedState] = []

    def noting(save: Any) -> Any:
        async def noted(*given: Any, **named: Any) -> saved_state.SavedState:
            done: saved_state.SavedState = await save(*given, **named)
            seen.append(done)
            return done

        return noted

    names = ("save", "save_changed")
    with (
        _Turns() as turns,
        mock.patch.multiple(saved_state, **{name: noting(getattr(saved_state, name)) for name in names}),
    ):
        await world.snapshot()
    [state] = seen
    return {"blobs": state.blobs, "bytes": state.size, "loop_ms": round(1000 * turns.longest_s)}


class _Turns:
    """How long the longest turn of the event loop took: what it did between two looks for what has happened."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._run = asyncio.Handle._run

    def __enter__(self) -> _Turns:
        def timed(handle: asyncio.Handle) -> None:
            began = time.perf_counter()
            self._run(handle)
            self.longest_s = max(self.longest_s, time.perf_counter() - began)

        self._patch = mock.patch.object(asyncio.Handle, "_run", timed)
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()


class _Peak:
    """The most resident memory of each kind, looked at by a thread. Where one kind grows as the other falls, their sum
    is more than there ever was.
    """

    def __init__(self) -> None:
        self._most: dict[str, int] = {}
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            for name, mib in _now_mib().items():
                self._most[name] = max(self._most.get(name, 0), mib)
            time.sleep(0.05)

    def mib(self) -> dict[str, int]:
        return dict(self._most)


async def _held(link: connection.Connection) -> HeldWorld:
    held = await wiring.host_of(link).worlds.hold(await Handle(link, "w").address())
    assert held is not None
    return held


def _cell_bytes(held: HeldWorld) -> int:
    """What its cells take, and changes that are not saved. No step is under way."""
    return held.machine.cells.size() + held.unsaved.bytes


def _now_mib() -> dict[str, int]:
    """The resident memory now: what is the process's own, and pages of files, the store's for the most part."""
    said = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(said[field].split()[0]) // 1024 for name, field in (("own", "RssAnon"), ("files", "RssFile"))}


def _peak_mib() -> int:
    """Of the resident memory of this process so far, pages of the store's file among it."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    main()
