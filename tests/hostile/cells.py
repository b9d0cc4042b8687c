"""A program that does its worst wherever user code runs, and a host of it: `python -m tests.hostile.cells`."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import dataclass

import worldline as wl
from worldline.model.settings import AdapterSettings, Settings, WorkerSettings

HOWS = ("memory", "recursion", "exit", "os_exit", "loop", "sleep")
PLACES = ("handler", "workflow", "where", "effect")

SETTINGS = Settings(
    worker=WorkerSettings(step_timeout_ms=300, crash_budget=2, scan_ms=200),
    adapter=AdapterSettings(scan_ms=100, dead_attempts_max=2),
)

app = wl.Program("cells")


def misbehave(how: str) -> None:
    match how:
        case "memory":
            raise MemoryError
        case "recursion":
            misbehave("recursion")
        case "exit":
            sys.exit(3)
        case "os_exit":
            os._exit(3)
        case "loop":
            while True:
                pass
        case "sleep":
            time.sleep(1e9)


@dataclass(frozen=True)
class Ping(wl.Request[int]):
    pass


@dataclass(frozen=True)
class Bad:
    how: str


@dataclass(frozen=True)
class Awaited:
    how: str


@app.reducer()
@dataclass
class Pings:
    count: int = 0

    @wl.on
    def ping(self, event: Ping) -> int:
        self.count += 1
        return self.count

    @wl.on
    def bad(self, event: Bad) -> None:
        misbehave(event.how)


@app.workflow
async def workflow(how: str) -> None:
    await wl.sleep(0.01)
    misbehave(how)


def accepts(event: Awaited) -> bool:
    misbehave(event.how)
    return True


@app.workflow
async def where() -> None:
    await wl.wait(Awaited, where=accepts)


@app.effect(retry=wl.Retry(attempts=2, initial_delay=0.01), timeout=0.5)
def bounded(how: str) -> None:
    misbehave(how)


@app.effect(retry=wl.Retry(attempts=None, initial_delay=0.01), timeout=0.5)
def unbounded(how: str) -> None:
    misbehave(how)


@app.workflow
async def effect(how: str) -> None:
    await (unbounded(how) if how == "os_exit" else bounded(how))


async def host(url: str) -> None:
    async with wl.open(url, host=app, settings=SETTINGS) as universe:
        print("ready", flush=True)
        assert universe._connection.host is not None
        while True:
            universe._connection.host.check()
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(host(sys.argv[1]))
