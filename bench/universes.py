"""What idle universes cost one process that serves them: CPU and calls to the store, for 1 and for many, in one run.

Each universe has one world that was run once and let go of. A process with all roles (`wl.serve`) then rests; both
sides are measured in turn, one after the other, several times. Calls are counted at the engine.

    .venv/bin/python -m bench.universes --json [--count 300] [--seconds 20] [--rounds 2] [--url postgresql://...]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import worldline as wl
from worldline.model.settings import Settings, WorkerSettings
from worldline.observe.measures import Measure

app = wl.Program("idle")
SETTLE_SECONDS = 4.0


@dataclass(frozen=True)
class Add:
    number: int


@app.reducer()
@dataclass
class Sum:
    total: int = 0

    @wl.on
    def add(self, event: Add) -> None:
        self.total += event.number


async def measure(url: str, count: int, seconds: float) -> dict[str, Any]:
    """One side, in this process."""
    calls: dict[str, float] = {}

    def count_call(measured: Measure) -> None:
        if measured.name in ("worldline_store_read_seconds", "worldline_store_commit_seconds"):
            calls[measured.name] = calls.get(measured.name, 0) + 1

    settings = Settings(worker=WorkerSettings(idle_release_ms=500))
    async with wl.serve(url, app, settings=settings, sinks=wl.ops.Sinks(metrics=count_call)) as hosting:
        for number in range(count):
            tenant = await hosting.universe(f"tenant-{number}", create=True)
            world = await tenant.ensure("w", app)
            await world.send(Add(1))
        while hosting.host.worlds.held:  # noqa: ASYNC110 - they are let go of in the background
            await asyncio.sleep(0.1)
        await asyncio.sleep(SETTLE_SECONDS)
        calls.clear()
        before = cpu_seconds()
        await asyncio.sleep(seconds)
        spent = cpu_seconds() - before
        reads = calls.get("worldline_store_read_seconds", 0)
        commits = calls.get("worldline_store_commit_seconds", 0)
        return {
            "universes": count,
            "cpu_percent": round(100 * spent / seconds, 3),
            "reads_per_second": round(reads / seconds, 2),
            "commits_per_second": round(commits / seconds, 2),
        }


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--url", default="", help="a store for each side: {} in it becomes a name")
    parser.add_argument("--side", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.side:
        print(json.dumps(asyncio.run(measure(given.url, given.side, given.seconds))))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = [
            side(given.url.format(f"u{count}") if given.url else str(Path(folder) / f"u{count}"), count, given.seconds)
            for _ in range(given.rounds)
            for count in (1, given.count)
        ]
    print(json.dumps(found) if given.json else "\n".join(map(str, found)))


def side(url: str, count: int, seconds: float) -> dict[str, Any]:
    """In a process of its own, so that what one side has done does not count for the other."""
    words = [sys.executable, "-m", "bench.universes", "--side", str(count), "--url", url, "--seconds", str(seconds)]
    found: dict[str, Any] = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return found


if __name__ == "__main__":
    main()
