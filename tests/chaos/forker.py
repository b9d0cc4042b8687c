"""A process that forks a world as fast as it can: `python -m tests.chaos.forker URL WORLD PREFIX COUNT AT_ONCE`.

It says `ready`, forks when it is told to, and says how long that took: all of it, and the slowest fork.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import msgspec

import worldline as wl

ROOT = Path(__file__).parents[2]
SECONDS = 600.0


class Took(msgspec.Struct, frozen=True):
    seconds: float
    slowest_ms: float


class Forker:
    """The parent's end."""

    def __init__(self, url: str, world: str, prefix: str, count: int, *, at_once: int) -> None:
        command = [sys.executable, "-m", "tests.chaos.forker", url, world, prefix, str(count), str(at_once)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def wait_ready(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == "ready"

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def took(self) -> Took:
        out, _ = self._process.communicate(timeout=SECONDS)
        assert self._process.returncode == 0
        return msgspec.json.decode(out, type=Took)

    def kill(self) -> None:
        """Wherever it is. Nothing is left to wait for."""
        self._process.kill()
        self._process.communicate()


async def main(url: str, world: str, prefix: str, count: int, at_once: int) -> None:
    async with wl.open(url) as universe:
        source = universe.world(world)
        await source.describe()
        names = iter([f"{prefix}-{number}" for number in range(count)])
        slowest = 0.0

        async def forks() -> None:
            nonlocal slowest
            for name in names:
                began = time.perf_counter()
                await source.fork(name)
                slowest = max(slowest, time.perf_counter() - began)

        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.readline)
        began = time.perf_counter()
        await asyncio.gather(*(forks() for _ in range(at_once)))
        took = Took(time.perf_counter() - began, slowest * 1000)
        sys.stdout.write(msgspec.json.encode(took).decode() + "\n")


if __name__ == "__main__":
    where, what, first, number, together = sys.argv[1:]
    asyncio.run(main(where, what, first, int(number), int(together)))
