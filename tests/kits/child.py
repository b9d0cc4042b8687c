"""A process that hosts counters: `python -m tests.kits.child URL [LEASE_TTL_MS]`.

It says `ready`, and afterwards obeys lines: `hold NAME` takes a world and says its epoch, `holds NAME` says whether it
has it, `add NAME` sends an increment and says the new total. It ends with its input.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio import subprocess
from dataclasses import dataclass
from pathlib import Path

import worldline as wl
from worldline.client import send_door
from worldline.model.settings import Settings, WorkerSettings

ROOT = Path(__file__).parents[2]

app = wl.Program("counters")


@dataclass(frozen=True)
class Add(wl.Request[int]):
    number: int


@app.reducer()
@dataclass
class Counter:
    total: int = 0

    @wl.on
    def add(self, event: Add) -> int:
        self.total += event.number
        return self.total


@dataclass(frozen=True)
class Go:
    pass


@app.workflow
async def wait() -> str:
    await wl.wait(Go)
    return "gone"


def settings(lease_ttl_ms: int) -> Settings:
    return Settings(
        worker=WorkerSettings(lease_ttl_ms=lease_ttl_ms, heartbeat_ms=lease_ttl_ms // 4, scan_ms=lease_ttl_ms // 4)
    )


class Child:
    """The parent's end."""

    def __init__(self, process: subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, url: str, lease_ttl_ms: int = 10_000) -> Child:
        command = [sys.executable, "-m", "tests.kits.child", url, str(lease_ttl_ms)]
        process = await asyncio.create_subprocess_exec(
            *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
        )
        child = cls(process)
        assert await child._line() == "ready"
        return child

    async def ask(self, line: str) -> str:
        self.tell(line)
        return await self._line()

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    async def answer(self) -> str:
        return await self._line()

    def stop(self) -> None:
        """Not scheduled any more, until it goes on."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    async def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        await self._process.wait()

    async def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert await self._process.wait() == 0

    async def _line(self) -> str:
        assert self._process.stdout is not None
        async with asyncio.timeout(30):
            return (await self._process.stdout.readline()).decode().strip()


async def serve(url: str, lease_ttl_ms: int) -> None:
    async with wl.open(url, host=app, settings=settings(lease_ttl_ms)) as universe:
        _say("ready")
        while line := await asyncio.to_thread(sys.stdin.readline):
            verb, name = line.split()
            _say(await _obey(universe, verb, name))


async def _obey(universe: wl.Universe, verb: str, name: str) -> str:
    world = await universe.ensure(name, app)
    assert universe._connection.host is not None
    if verb == "hold":
        held = await send_door.hosted(universe._connection, await world._handle.address())
        return "no" if held is None else str(held.lease.epoch)
    if verb == "holds":
        return str(universe._connection.host.worlds.holds(await world._handle.address()))
    assert verb == "add"
    return str(await world.ask(Add(1), timeout=20))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
