"""CPU time of durable flow domains, for each operation, beside workloads A and C: `python -m bench.flow_cpu`

On a machine that others use too, rates say little, and CPU time more. All sides take turns in one process; each figure
is the median of the turns, in microseconds, in all and for each thread. The step of a workflow is an eleventh of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from worldline import flow
from worldline.api.universe_api import Universe
from worldline.base import env_os
from worldline.bench import bench_workloads, domain_bench, flow_bench
from worldline.client import connection

Call = Callable[[int], Awaitable[object]]
ENV = env_os.OsEnv()
TASKS = Path("/proc/self/task")


def by_thread() -> dict[str, float]:
    """The CPU microseconds that each thread has used, by name."""
    names = {each.native_id: each.name for each in threading.enumerate()}
    found: dict[str, float] = {}
    for task in TASKS.iterdir():
        name = names.get(int(task.name), "other").partition(" ")[0]
        found[name] = found.get(name, 0.0) + int((task / "schedstat").read_text().split()[0]) / 1_000
    return found


async def measured(seconds: float, callers: int, call: Call) -> dict[str, float]:
    timed, before = bench_workloads.Timed(ENV), by_thread()
    await timed.run(seconds, callers, call)
    used = {name: us - before.get(name, 0.0) for name, us in by_thread().items()}
    return {name: us / len(timed.latencies_us) for name, us in {**used, "all": sum(used.values())}.items()}


async def sides(universe: Universe) -> dict[str, tuple[int, Call]]:
    """How many callers do what, by name."""
    apps = {"a": bench_workloads.app, "f": domain_bench.app, "c": bench_workloads.app, "g": domain_bench.app}
    many = {
        "a": bench_workloads.WORLDS,
        "f": bench_workloads.WORLDS,
        "c": bench_workloads.FLOWS,
        "g": bench_workloads.FLOWS,
    }
    worlds = {
        each: [await universe.ensure(f"{each}-{number}", apps[each]) for number in range(many[each])] for each in apps
    }
    one, some = domain_bench.sized.action("one"), worlds["g"][: domain_bench.SIZED_WORLDS]
    for kib in flow_bench.CELLS_KIB:
        for world in some:
            filling = [flow.set("items", flow_bench.filling(kib * flow_bench.KIB))]
            await world.patch(domain_bench.sized, filling, key=str(kib))

    def turn(name: str, call: Callable[[Any], Awaitable[object]]) -> Call:
        return lambda number: call(worlds[name][number % len(worlds[name])])

    def on_cell(kib: int) -> Call:
        return lambda number: some[number % len(some)].act(one(), key=str(kib))

    return {
        "event (A)": (bench_workloads.SENDERS, turn("a", lambda world: world.send(bench_workloads.Added(1)))),
        "counter action": (bench_workloads.SENDERS, turn("f", lambda world: world.act(domain_bench.Tally.add(1)))),
        "workflow (C)": (bench_workloads.FLOWS, turn("c", lambda world: world.run(bench_workloads.ten(0)))),
        "action with an effect": (
            bench_workloads.FLOWS,
            turn("g", lambda world: world.act(domain_bench.NumberQuestion.ask(1))),
        ),
        **{f"cell of {kib} KiB": (len(some), on_cell(kib)) for kib in flow_bench.CELLS_KIB},
    }


async def run(seconds: float, turns: int) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="worldline-bench-") as temporary:
        async with connection.open(f"{temporary}/u", host=[bench_workloads.app, domain_bench.app]) as link:
            chosen = await sides(Universe(link))
            for number in range(turns + 1):
                for name, (callers, call) in chosen.items():
                    figures = await measured(seconds, callers, call)
                    if number:  # the first turn warms up
                        found.setdefault(name, []).append(figures)
    made = {
        name: {part: round(statistics.median(each[part] for each in turns)) for part in turns[0] if turns[0][part] > 1}
        for name, turns in found.items()
    }
    events, step = made["event (A)"]["all"], made["workflow (C)"]["all"] / bench_workloads.TEN_STEPS
    return {
        "load": [round(each, 1) for each in os.getloadavg()],
        "counter of events": round(events / made["counter action"]["all"], 3),
        "effect of steps": round(step / made["action with an effect"]["all"], 3),
        "microseconds": made,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each side in each turn")
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    print(json.dumps(asyncio.run(run(given.seconds, given.turns)), indent=1))


if __name__ == "__main__":
    main()
