"""Workload E: how long a world of ten thousand entries takes to come back in a fresh process, without and with a
snapshot. Interpreter start and imports are not part of it; they are printed apart.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import worldline as wl
from worldline.api import wiring
from worldline.base import env_os
from worldline.bench import bench_workloads
from worldline.client.world_handle import Handle
from worldline.model.settings import Settings, WorkerSettings

ENTRIES = 10_000
# So that nothing is saved before the bench says so.
NEVER = WorkerSettings(snapshot_entries=10**9, snapshot_ms=10**9)


async def fill(url: str) -> None:
    """A world with the entries, killed without having been saved."""
    async with wiring.open(url, host=bench_workloads.app, settings=Settings(worker=NEVER)) as link:
        world = await wl.Universe(link).ensure("e", bench_workloads.app)
        for _ in range(ENTRIES // 500):  # in lots: all at once would reach the bound on inputs that wait for one world
            await asyncio.gather(*(world.send(bench_workloads.Added(1)) for _ in range(500)))
        wiring.host_of(link).abandon()  # as a kill would leave it: a clean end would save the state


async def measure(url: str) -> dict[str, float]:
    """Take the world over and say how long that took; then save it."""
    async with wiring.open(url, host=bench_workloads.app) as link:
        world = wl.World(link, "e")
        assert link.host is not None
        held = await link.host.worlds.hold(await Handle(link, "e").address())
        assert held is not None
        assert held.machine.read_cell(bench_workloads.EventCounter, "").total == ENTRIES
        entries = held.entries_since
        seconds = link.host.worlds.restored_ms / 1000
        await world.snapshot()  # the second measurement begins at it
    return {"entries": entries, "seconds": seconds}


def run(folder: Path) -> dict[str, float]:
    url = str(folder)
    _child("fill", url)
    replayed, saved = _child("measure", url), _child("measure", url)
    assert replayed["entries"] >= ENTRIES  # else a snapshot was saved after all, and this is not the figure of a replay
    assert saved["entries"] == 0
    return {
        "replay_s": round(replayed["seconds"], 4),
        "snapshot_s": round(saved["seconds"], 4),
        "start_and_imports_s": round(saved["start_s"], 3),
    }


def _child(what: str, url: str) -> dict[str, float]:
    clock = env_os.OsEnv()
    before_us = clock.monotonic_us()
    # A fresh process each time: caches of the one before would make the restore look faster than a failover is.
    command = [sys.executable, "-m", "worldline.bench.restore_bench", what, url]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)  # noqa: S603 - ourselves
    found: dict[str, float] = json.loads(done.stdout)
    found["start_s"] = (clock.monotonic_us() - before_us) / 1_000_000 - found.get("inside_s", 0.0)
    return found


def main() -> None:
    clock = env_os.OsEnv()
    before_us = clock.monotonic_us()
    what, url = sys.argv[1:]
    found: dict[str, float] = {}
    if what == "fill":
        asyncio.run(fill(url))
    else:
        found = asyncio.run(measure(url))
    found["inside_s"] = (clock.monotonic_us() - before_us) / 1_000_000
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
