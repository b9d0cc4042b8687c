"""A process with a store of its own opening, for cases that need one.

`python -m tests.conformance.child ENGINE WHERE` opens the store and says so. Each line `KEY VALUE` (hex) on its input
is created by one batch, and answered by the outcome's name. The process ends with its input.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import subprocess
from pathlib import Path

from tests.conformance import batches, kits

ROOT = Path(__file__).parents[2]


class Child:
    """The parent's end."""

    def __init__(self, process: subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, place: kits.Place) -> Child:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.conformance.child", *place),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        child = cls(process)
        assert await child._line() == "open"
        return child

    async def create(self, key: bytes, value: bytes) -> None:
        """Returns when the child has its `Ok`."""
        self.create_nowait(key, value)
        assert await self._line() == "Ok"

    def create_nowait(self, key: bytes, value: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{key.hex()} {value.hex()}\n".encode())

    async def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert await self._process.wait() == 0

    async def _line(self) -> str:
        assert self._process.stdout is not None
        async with asyncio.timeout(30):
            return (await self._process.stdout.readline()).decode().strip()


async def serve(place: kits.Place) -> None:
    engine = await kits.open_place(place)
    sys.stdout.write("open\n")
    sys.stdout.flush()
    while line := await asyncio.to_thread(sys.stdin.readline):
        key, value = (bytes.fromhex(part) for part in line.rstrip("\n").split(" "))
        [outcome] = await engine.commit(batches.create(key, value))
        sys.stdout.write(f"{type(outcome).__name__}\n")
        sys.stdout.flush()
    await engine.close()


if __name__ == "__main__":
    asyncio.run(serve(kits.Place(*sys.argv[1:])))
