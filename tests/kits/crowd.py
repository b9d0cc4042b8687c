"""A process with many worlds: `python -m tests.kits.crowd FOLDER COUNT IDLE_SECONDS` prints one JSON object.

It creates the worlds, touches each once, and then does nothing for a while; what that took is what it prints.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import worldline as wl
from tests import aio
from tests.kits.crashing import Counting
from worldline.api.universe_api import Universe
from worldline.base import env_os
from worldline.client import connection
from worldline.host.feature_list import FEATURES
from worldline.layers import store_format as formats
from worldline.model.settings import Settings
from worldline.runtime import store_opening
from worldline.store.lmdb import lmdb_driver
from worldline.store.objects import folder_objects as objects_folder

AT_ONCE = 64

app = wl.Program("crowd")


@dataclass(frozen=True)
class Touched:
    number: int


@app.reducer()
@dataclass
class Being:
    last: int = -1

    @wl.on
    def touched(self, event: Touched) -> None:
        self.last = event.number


def memory_bytes() -> int:
    """The most this process has ever had in memory.

    `ru_maxrss` would do, but it begins with what the parent had when it forked; the kernel's own record does not.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def each(count: int, do: Any) -> float:
    """Do something for each number, some at once. Returns the seconds it took."""
    started = time.monotonic()
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await do(number)

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return time.monotonic() - started


async def main(folder: Path, count: int, idle_seconds: float) -> dict[str, float]:
    env = env_os.OsEnv()
    engine = Counting(await lmdb_driver.open(folder, env, create=True), keep=False)
    await formats.ensure(engine, env, create=True)
    store = store_opening.Store(
        str(folder), engine, await objects_folder.open(folder / "objects", create=True), env, FEATURES
    )
    found = await connection.find_universe(store, "default", create=True)
    before = memory_bytes()
    opened = connection.Connection(store, found, "default", [app], Settings())
    universe = Universe(opened)
    opened.start()

    async def create(number: int) -> None:
        await universe.create(f"w{number}", app)

    async def touch(number: int) -> None:
        await universe.world(f"w{number}").send(Touched(number))

    created_s = await each(count, create)
    touched_s = await each(count, touch)
    warm = len(opened.host.worlds.held)  # type: ignore[union-attr]

    async def settled() -> bool:
        return len(opened.host.worlds.held) <= Settings().worker.max_worlds_warm  # type: ignore[union-attr]

    await aio.until(settled, seconds=300)
    await asyncio.sleep(1)
    commits, cpu, began = engine.commits, cpu_seconds(), time.monotonic()
    await asyncio.sleep(idle_seconds)
    idle_s = time.monotonic() - began
    idle_commits, idle_cpu = engine.commits - commits, cpu_seconds() - cpu
    state = await universe.world(f"w{count // 2}").state(Being)
    assert state.last == count // 2
    peak = memory_bytes()
    await universe._connection.close()
    await store.close()
    return {
        "created_s": created_s,
        "touched_s": touched_s,
        "warm": warm,
        "idle_commits": idle_commits,
        "idle_s": idle_s,
        "idle_cpu_s": idle_cpu,
        "peak_bytes": peak,
        "bytes_per_world": (peak - before) / count,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))))
