"""The durable part of workload F: flow domains in worlds, with the workloads they are compared with in the same run.

Both sides of a ratio take turns, for a short while each; a ratio is the median of those of all turns. Counter actions
stand beside workload A, actions with one effect beside the steps of workload C: the same worlds, callers and waiting
for what is journaled.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable
from typing import Any, Final

import worldline as wl
from worldline import flow
from worldline.base import env as envs
from worldline.bench import bench_workloads, flow_bench
from worldline.flow_core import document_schema

TURNS_MAX: Final = 9
SIZED_WORLDS: Final = 8

app = wl.Program("bench-flow")


@app.effect
async def trivial(number: float) -> float:
    return number + 1


@app.domain()
class Tally(flow.Domain):
    total: int = 0

    @flow.action
    def add(self, by: int) -> None:
        self.total = self.total + by


@app.domain()
class NumberQuestion(flow.Domain):
    asked: str | None = None
    answer: int | None = None

    @flow.action
    def ask(self, number: int) -> None:
        with flow.once(self.asked):
            self.answer = None
        flow.perform(trivial(number), into=self.answer)


sized = app.domain(document_schema.sealed(flow_bench.DOCUMENT), keyed=True, name="Sized")

Side = Callable[[wl.Universe, envs.Env, float], Awaitable[float]]


async def run(universe: wl.Universe, env: envs.Env, seconds: float) -> dict[str, Any]:
    """Each side of each ratio is measured for so long, in turns of a second or more."""
    counter = await _beside(universe, env, seconds, counters, _events)
    effect = await _beside(universe, env, seconds, effects, _steps)
    return {
        "durable_counter_per_s": counter[0],
        "of_events": counter[1],
        "durable_effect_per_s": effect[0],
        "of_steps": effect[1],
        **{
            f"durable_{size}_kib_per_s": round(await cells(universe, env, seconds / _turns(seconds), size), 1)
            for size in flow_bench.CELLS_KIB
        },
    }


async def _beside(universe: wl.Universe, env: envs.Env, seconds: float, side: Side, other: Side) -> tuple[float, float]:
    """The median of one side, each second, and of its ratio to the other."""
    found, ratios, turns = [], [], _turns(seconds)
    for _ in range(turns):
        # Both sides within one turn: what else the machine does changes in between, and would be in the ratio.
        beside = await other(universe, env, seconds / turns)
        found.append(await side(universe, env, seconds / turns))
        ratios.append(found[-1] / beside)
    return round(statistics.median(found), 1), round(statistics.median(ratios), 3)


def _turns(seconds: float) -> int:
    return max(1, min(TURNS_MAX, int(seconds)))


async def _events(universe: wl.Universe, env: envs.Env, seconds: float) -> float:
    return (await bench_workloads.many_worlds(universe, env, seconds))["per_s"]


async def _steps(universe: wl.Universe, env: envs.Env, seconds: float) -> float:
    return await bench_workloads.workflow_steps(universe, env, seconds)


async def counters(universe: wl.Universe, env: envs.Env, seconds: float) -> float:
    """Counter actions over many worlds, each second."""
    worlds = [await universe.ensure(f"f-{number}", app) for number in range(bench_workloads.WORLDS)]
    before = sum([each.state.total for each in await asyncio.gather(*(world.act(Tally.add(0)) for world in worlds))])
    timed = bench_workloads.Timed(env)
    await timed.run(seconds, bench_workloads.SENDERS, lambda turn: worlds[turn % len(worlds)].act(Tally.add(1)))
    after = sum([(await world.state(Tally)).total for world in worlds])
    assert after - before == len(timed.latencies_us), "an action was lost or doubled"
    return timed.per_s


async def effects(universe: wl.Universe, env: envs.Env, seconds: float) -> float:
    """Actions with one effect, each second."""
    worlds = [await universe.ensure(f"g-{number}", app) for number in range(bench_workloads.FLOWS)]
    # Once before the clock starts: the first act makes the cell.
    first = await asyncio.gather(*(world.act(NumberQuestion.ask(1)) for world in worlds))
    assert all(each.state.answer == 2 for each in first), "an answer is not the effect's"
    timed = bench_workloads.Timed(env)
    await timed.run(seconds, len(worlds), lambda turn: worlds[turn % len(worlds)].act(NumberQuestion.ask(1)))
    return timed.per_s


async def cells(universe: wl.Universe, env: envs.Env, seconds: float, kib: int) -> float:
    """Counter actions on cells of a size, each second."""
    worlds = [await universe.ensure(f"s-{number}", app) for number in range(SIZED_WORLDS)]
    filling, key = [flow.set("items", flow_bench.filling(kib * flow_bench.KIB))], str(kib)
    # Filled before the clock starts, and large from then on.
    await asyncio.gather(*(world.patch(sized, filling, key=key) for world in worlds))
    one = sized.action("one")
    timed = bench_workloads.Timed(env)
    await timed.run(seconds, len(worlds), lambda turn: worlds[turn % len(worlds)].act(one(), key=key))
    return timed.per_s
