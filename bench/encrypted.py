"""What encryption costs: workloads A, B1 and C on a plain and on an encrypted store, turn about, in one run.

`python -m bench.encrypted [--seconds S] [--rounds N]`. The ratio of each is that of the medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from pathlib import Path

import worldline as wl
from worldline.base import env_os
from worldline.bench import workloads

KEYS = {"bench": bytes(range(32))}
NAMES = ("A", "B1", "C")


async def measure(url: str, codec: wl.AesGcm | None, seconds: float) -> dict[str, float]:
    env = env_os.OsEnv()
    async with wl.open(url, host=workloads.app, codec=codec) as universe:
        found = {
            "A": await workloads.many_worlds(universe, env, seconds),
            "B1": await workloads.one_world(universe, env, seconds, 1),
            "C": await workloads.workflows(universe, env, seconds),
        }
    return {name: each["per_s"] for name, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    rates: dict[str, dict[str, list[float]]] = {kind: {name: [] for name in NAMES} for kind in ("plain", "encrypted")}
    with tempfile.TemporaryDirectory(prefix="worldline-bench-") as folder:
        for turn in range(given.rounds):
            for kind in ("plain", "encrypted") if turn % 2 else ("encrypted", "plain"):
                codec = wl.AesGcm(keys=KEYS, current="bench") if kind == "encrypted" else None
                found = asyncio.run(measure(str(Path(folder) / f"{kind}-{turn}"), codec, given.seconds))
                for name, rate in found.items():
                    rates[kind][name].append(rate)
    figures = {}
    for name in NAMES:
        plain, encrypted = (statistics.median(rates[kind][name]) for kind in ("plain", "encrypted"))
        figures[name] = {
            "plain_per_s": round(plain),
            "encrypted_per_s": round(encrypted),
            "ratio": round(encrypted / plain, 2),
        }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
