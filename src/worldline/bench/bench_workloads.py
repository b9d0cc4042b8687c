"""The workloads of `worldline bench`, each over a universe hosted in this process.

A: counters spread over many worlds. B: one world. C: workflows of ten effects. D: timers. E is in `restore_bench.py`.
Every figure is end to end: a send counts when it is journaled, a workflow when its result is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import worldline as wl
from worldline.base import env as envs

app = wl.Program("bench")

WORLDS = 100
SENDERS = 64
FLOWS = 32
TEN_STEPS = 11  # of a workflow of ten effects: its start, and one for each answer
TIMERS = 2_000
TIMER_WORLDS = 20
SPREAD_SECONDS = 10.0


@dataclass(frozen=True)
class Added:
    by: int


@app.reducer()
@dataclass
class EventCounter:
    total: int = 0

    @wl.on
    def added(self, event: Added) -> None:
        self.total += event.by


@dataclass(frozen=True)
class Rang:
    due_us: int


@app.reducer()
@dataclass
class Bells:
    """How late each timer was, in microseconds of the store's time."""

    late_us: list[int] | None = None

    @wl.on
    def rang(self, event: Rang) -> None:
        now_us = round(wl.now().timestamp() * 1_000_000)
        self.late_us = [*(self.late_us or []), now_us - event.due_us]


@app.effect
async def trivial(number: int) -> int:
    return number + 1


@app.workflow
async def ten(number: int) -> int:
    for _ in range(10):
        number = await trivial(number)
    return number


@app.workflow
async def one(number: int) -> int:
    return await trivial(number)


@app.workflow
async def ring(first: float, gap: float, count: int) -> int:
    """Set a number of timers, the first after a while, the others at a distance each."""
    start_us = round(wl.now().timestamp() * 1_000_000)
    for index in range(count):
        seconds = first + gap * index
        wl.after(seconds, Rang(start_us + round(seconds * 1_000_000)))
    return count


class Timed:
    """Latencies of one workload, and how long it took in all."""

    def __init__(self, env: envs.Env) -> None:
        self._env = env
        self.latencies_us: list[int] = []
        self.seconds = 0.0

    async def run(self, seconds: float, workers: int, work: Callable[[int], Awaitable[object]]) -> None:
        """Let `workers` callers repeat `work` for a while, each one after the other."""
        started_us = self._env.monotonic_us()
        end_us = started_us + round(seconds * 1_000_000)

        async def caller(number: int) -> None:
            turn = number
            while (before_us := self._env.monotonic_us()) < end_us:  # what has begun in time counts to its end
                await work(turn)
                self.latencies_us.append(self._env.monotonic_us() - before_us)
                turn += workers  # callers take turns over the worlds without meeting on one

        await asyncio.gather(*(caller(number) for number in range(workers)))
        self.seconds = (self._env.monotonic_us() - started_us) / 1_000_000

    @property
    def per_s(self) -> float:
        return len(self.latencies_us) / self.seconds

    def percentile_ms(self, share: float) -> float:
        return percentile(self.latencies_us, share) / 1000

    def figures(self) -> dict[str, float]:
        return {
            "per_s": round(self.per_s, 1),
            "p50_ms": round(self.percentile_ms(0.50), 3),
            "p95_ms": round(self.percentile_ms(0.95), 3),
            "p99_ms": round(self.percentile_ms(0.99), 3),
        }


def percentile(values: list[int], share: float) -> float:
    ordered = sorted(values)
    return float(ordered[min(len(ordered) - 1, int(len(ordered) * share))])


async def many_worlds(universe: wl.Universe, env: envs.Env, seconds: float) -> dict[str, float]:
    worlds = [await universe.ensure(f"a-{number}", app) for number in range(WORLDS)]
    for world in worlds:
        await (await world.send(Added(0))).applied()  # every world has a holder before the clock starts
    # The store may have these worlds from an earlier run.
    before = sum([(await world.state(EventCounter)).total for world in worlds])
    timed = Timed(env)
    await timed.run(seconds, SENDERS, lambda turn: worlds[turn % WORLDS].send(Added(1)))
    total = sum([(await world.state(EventCounter)).total for world in worlds]) - before
    # Speed that loses inputs is worth nothing.
    assert total == len(timed.latencies_us), "an increment was lost or doubled"
    return timed.figures()


async def one_world(universe: wl.Universe, env: envs.Env, seconds: float, in_flight: int) -> dict[str, float]:
    world = await universe.ensure(f"b-{in_flight}", app)
    await world.send(Added(0))
    timed = Timed(env)
    await timed.run(seconds, in_flight, lambda _: world.send(Added(1)))
    assert (await world.state(EventCounter)).total == len(timed.latencies_us), "an increment was lost or doubled"
    return timed.figures()


async def workflows(universe: wl.Universe, env: envs.Env, seconds: float) -> dict[str, float]:
    worlds, timed = await _ten_effects(universe, env, seconds)
    alone = Timed(env)  # one caller: what a workflow takes when nothing else is under way
    await alone.run(min(seconds, 2.0), 1, lambda _: worlds[0].run(ten(0)))
    return {
        "workflows_per_s": round(timed.per_s, 1),
        "steps_per_s": round(timed.per_s * TEN_STEPS, 1),
        "p50_ms": round(timed.percentile_ms(0.50), 3),
        "alone_p50_ms": round(alone.percentile_ms(0.50), 3),
    }


async def workflow_steps(universe: wl.Universe, env: envs.Env, seconds: float) -> float:
    """The steps of such workflows, each second."""
    return (await _ten_effects(universe, env, seconds))[1].per_s * TEN_STEPS


async def _ten_effects(universe: wl.Universe, env: envs.Env, seconds: float) -> tuple[list[wl.World], Timed]:
    worlds = [await universe.ensure(f"c-{number}", app) for number in range(FLOWS)]
    for world in worlds:
        await world.send(Added(0))
    timed = Timed(env)
    await timed.run(seconds, FLOWS, lambda turn: worlds[turn % FLOWS].run(ten(0)))
    return worlds, timed


async def timers(universe: wl.Universe) -> dict[str, float]:
    spread = await _ring(universe, "d", gap=SPREAD_SECONDS / TIMERS * TIMER_WORLDS)
    herd = await _ring(universe, "h", gap=0.0)
    return {
        "p50_ms": round(percentile(spread, 0.50) / 1000, 3),
        "p99_ms": round(percentile(spread, 0.99) / 1000, 3),
        "herd_s": round(max(herd) / 1_000_000, 3),
    }


async def _ring(universe: wl.Universe, name: str, *, gap: float) -> list[int]:
    """Set the timers, wait for all of them, and return how late each was."""
    each = TIMERS // TIMER_WORLDS
    worlds = [await universe.ensure(f"{name}-{number}", app) for number in range(TIMER_WORLDS)]
    # Late enough that all are set before the first is due.
    firsts = [3.0 + index * gap / TIMER_WORLDS for index in range(TIMER_WORLDS)]
    await asyncio.gather(*(world.run(ring(first, gap, each)) for world, first in zip(worlds, firsts, strict=True)))
    late: list[int] = []
    for world in worlds:
        found: list[int] = []
        async with asyncio.timeout(60):
            async for _ in world.follow(above=0):
                # After each entry: the state is asked until every timer has rung, without polling by a clock.
                found = (await world.state(Bells)).late_us or []
                if len(found) >= each:
                    break
        late += found
    return late
