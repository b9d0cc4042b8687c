"""Failover and what was journaled before: `python -m bench.failover --json`

Two processes host one world on an embedded store. One holds it, is given events for some seconds or none, and is killed
(`kill -9`); the other is asked at once. Measured is the time until it answers. Rounds without and with load take turns,
so whatever else the machine does concerns both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from dataclasses import dataclass

import worldline as wl

HOLD = "--hold"
SENDERS = 64
DIFFERENCE_SECONDS_MAX = 0.5
ANSWER_SECONDS_MAX = 60.0

app = wl.Program("failover")


@dataclass(frozen=True)
class Added:
    by: int


@dataclass(frozen=True)
class Total(wl.Request[int]):
    pass


@app.reducer()
@dataclass
class Counter:
    total: int = 0

    @wl.on
    def added(self, event: Added) -> None:
        self.total += event.by

    @wl.on
    def asked(self, request: Total) -> int:
        del request
        return self.total


async def hold(url: str, seconds: float) -> None:
    """Hold the world, send it events for a while, say how many it has taken, and wait to be killed."""
    async with wl.open(url, host=app) as universe:
        world = await universe.ensure("f", app)
        end = time.monotonic() + seconds

        async def sender() -> None:
            while time.monotonic() < end:
                await world.send(Added(1))

        await asyncio.gather(*(sender() for _ in range(SENDERS)))
        print(await world.ask(Total()), flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def fail_over(seconds: float) -> tuple[float, int]:
    """The time until the other process answers, and how many events the first one had taken."""
    with tempfile.TemporaryDirectory(prefix="worldline-failover-") as url:
        async with wl.open(url, host=app) as universe:
            command = [sys.executable, "-m", "bench.failover", HOLD, url, str(seconds)]
            holder = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
            try:
                assert holder.stdout is not None
                taken = int(await holder.stdout.readline())
            finally:
                holder.kill()
            killed = time.monotonic()
            found = await universe.world("f").ask(Total(), timeout=ANSWER_SECONDS_MAX)
            answered = time.monotonic() - killed
            await holder.wait()
    assert found == taken, f"{taken} events were taken, and {found} are there"
    return answered, taken


def main() -> None:
    if HOLD in sys.argv:
        _, _, url, seconds = sys.argv
        asyncio.run(hold(url, float(seconds)))
        return
    asked = argparse.ArgumentParser(prog="python -m bench.failover", description=(__doc__ or "").split("\n", 1)[0])
    asked.add_argument("--seconds", type=float, default=20.0, help="of load")
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--json", action="store_true")
    given = asked.parse_args()
    without: list[float] = []
    with_load: list[float] = []
    taken: list[int] = []
    for _ in range(given.rounds):
        without.append(asyncio.run(fail_over(0.0))[0])
        answered, events = asyncio.run(fail_over(given.seconds))
        with_load.append(answered)
        taken.append(events)
    figures = {
        "without_s": [round(each, 3) for each in without],
        "with_s": [round(each, 3) for each in with_load],
        "events": taken,
        "difference_s": round(statistics.median(with_load) - statistics.median(without), 3),
        "wanted_s": DIFFERENCE_SECONDS_MAX,
    }
    if given.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
