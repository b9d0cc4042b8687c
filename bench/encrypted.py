"""What encryption costs: workloads A, B1 and C on a plain and on an encrypted store, turn about, in one run.

`python -m bench.encrypted [--seconds S] [--rounds N]`. Ratios are those of the medians. The CPU time of the process for
each event or workflow says more than rates do on a machine that others share.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path

import worldline as wl
from worldline.base import env_os
from worldline.bench import bench_workloads

KEYS = {"bench": bytes(range(32))}
NAMES = ("A", "B1", "C")
RATES = ("per_s", "workflows_per_s")

Figures = dict[str, tuple[float, float]]  # by workload: rate, and CPU microseconds for each


async def measure(url: str, codec: wl.ops.AesGcm | None, seconds: float) -> Figures:
    env = env_os.OsEnv()
    figures: Figures = {}

    async def one(name: str, work: Awaitable[dict[str, float]]) -> None:
        began, cpu = time.perf_counter(), time.process_time()
        found = await work
        rate = next(found[key] for key in RATES if key in found)
        cpu_share = (time.process_time() - cpu) / (time.perf_counter() - began)
        figures[name] = rate, cpu_share / rate * 1_000_000

    async with wl.open(url, host=bench_workloads.app, codec=codec) as universe:
        await one("A", bench_workloads.many_worlds(universe, env, seconds))
        await one("B1", bench_workloads.one_world(universe, env, seconds, 1))
        await one("C", bench_workloads.workflows(universe, env, seconds))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    found: dict[str, list[Figures]] = {"plain": [], "encrypted": []}
    with tempfile.TemporaryDirectory(prefix="worldline-bench-") as folder:
        for turn in range(given.rounds):
            for kind in ("plain", "encrypted") if turn % 2 else ("encrypted", "plain"):
                codec = wl.ops.AesGcm(keys=KEYS, current="bench") if kind == "encrypted" else None
                url = str(Path(folder) / f"{kind}-{turn}")
                found[kind].append(asyncio.run(measure(url, codec, given.seconds)))
    figures = {}
    for name in NAMES:
        rates = {kind: statistics.median(each[name][0] for each in rounds) for kind, rounds in found.items()}
        cpu_us = {kind: statistics.median(each[name][1] for each in rounds) for kind, rounds in found.items()}
        figures[name] = {
            "per_s": {kind: round(rate, 1) for kind, rate in rates.items()},
            "rate_ratio": round(rates["encrypted"] / rates["plain"], 2),
            "cpu_us": {kind: round(each) for kind, each in cpu_us.items()},
            "cpu_ratio": round(cpu_us["encrypted"] / cpu_us["plain"], 2),
        }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
