"""`worldline bench`: what this machine does, end to end, with full durability, beside the bare engine in the same run.

Ratios between figures of one run mean something; absolute figures mean little on machines that others share.
"""

from __future__ import annotations

import asyncio
import os
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from worldline.api import wiring
from worldline.api.universe_api import Universe
from worldline.base import env as envs
from worldline.base import env_os, errors
from worldline.bench import bench_targets, bench_workloads, cluster_bench, domain_bench, flow_bench, restore_bench
from worldline.runtime import store_opening
from worldline.store import kv

NAMES = ("A", "B1", "B64", "C", "D", "E", "F")
TITLES = {
    "A": "100 worlds, 64 senders: increments applied",
    "B1": "one world, one in flight",
    "B64": "one world, 64 in flight",
    "C": "workflows of ten effects, 32 in flight",
    "D": "2,000 timers over 10 s, then at one instant",
    "E": "10,000 entries restored in a fresh process",
    "F": "flow domains: in memory on one core, and durable",
}


Progress = Callable[[int, int, str], None]


def run(
    only: list[str], *, seconds: float = 5.0, store: str | None = None, progress: Progress = lambda *_: None
) -> dict[str, Any]:
    """Run the workloads. Without a store, in a temporary folder."""
    unknown = [name for name in only if name not in (*NAMES, "B")]
    if unknown:
        raise errors.BadInput(f"no workload {unknown[0]!r}; there are {', '.join(NAMES)}")
    wanted = [name for name in NAMES if not only or name in only or (name.startswith("B") and "B" in only)]
    with tempfile.TemporaryDirectory(prefix="worldline-bench-") as temporary:
        url = store or str(Path(temporary) / "universe")
        # Its processes open a folder of their own, so its figure would not be the server's.
        if "E" in wanted and store_opening.scheme(url) != "":
            raise errors.BadInput("workload E needs a folder; choose others with --only A,B,C,D")
        figures = asyncio.run(_run(url, wanted, seconds, progress))
        if "E" in wanted:
            progress(len(wanted), len(wanted) + 1, TITLES["E"])
            # Last, and with the store closed: its child processes must have the machine to themselves.
            figures["E"] = restore_bench.run(Path(temporary) / "restored")
    return figures | _place(url)


def run_cluster(
    store: str, *, seconds: float, check: bool = False, progress: Progress = lambda *_: None
) -> dict[str, Any]:
    """Roles as processes of their own, on a server. `check`: also whether they keep what is promised of them."""
    cluster_bench.check(store)
    return {"cluster": asyncio.run(cluster_bench.run(store, seconds=seconds, check=check, progress=progress))} | _place(
        store
    )


def missed(figures: dict[str, Any]) -> bool:
    """Whether a cluster has missed a target."""
    return bench_targets.is_missed(figures.get("cluster", {}).get("targets", []))


def _place(url: str) -> dict[str, Any]:
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.system()}
    return {"store": "lmdb" if store_opening.scheme(url) == "" else store_opening.scheme(url), "machine": machine}


async def _run(url: str, names: list[str], seconds: float, progress: Progress) -> dict[str, Any]:
    env = env_os.OsEnv()
    figures: dict[str, Any] = {}
    async with wiring.open(url, host=[bench_workloads.app, domain_bench.app]) as link:
        universe = Universe(link)
        for index, name in enumerate(names):
            progress(index, len(names) + 1, TITLES[name])
            if name == "A":
                figures[name] = await bench_workloads.many_worlds(universe, env, seconds)
            elif name in ("B1", "B64"):
                figures[name] = await bench_workloads.one_world(universe, env, seconds, int(name[1:]))
            elif name == "C":
                figures[name] = await bench_workloads.workflows(universe, env, seconds)
            elif name == "D":
                figures[name] = await bench_workloads.timers(universe)
            elif name == "F":
                figures[name] = flow_bench.run(env) | await domain_bench.run(universe, env, seconds)
        # In the same run, on the same store: figures mean something beside what the engine does at that moment.
        figures["floor"] = await _floor(link.store.engine, env, min(seconds, 2.0))
    return figures


async def _floor(engine: kv.Engine, env: envs.Env, seconds: float) -> dict[str, Any]:
    """The bare engine: one guarded write after the other, and 64 at a time."""
    figures = {}
    for callers in (1, bench_workloads.SENDERS):
        timed = bench_workloads.Timed(env)

        async def write(_: int) -> object:
            key = b"\xfebench/" + envs.new_id(env)
            batch = kv.Batch()
            batch.absent(key)  # a guarded write, as every write of a world is one
            batch.put(key, bytes(300))
            return await engine.commit(batch)

        await timed.run(seconds, callers, write)
        figures[f"commits_{callers}"] = timed.figures()
    return figures


def sentence(figures: dict[str, Any]) -> str:
    """One line about workload A."""
    found, floor = figures["A"], figures["floor"][f"commits_{bench_workloads.SENDERS}"]
    return (
        f"{found['per_s']:,.0f} durable increments per second over {bench_workloads.WORLDS} worlds, "
        f"p50 {found['p50_ms']:.1f} ms, p99 {found['p99_ms']:.1f} ms "
        f"(the bare engine: {floor['per_s']:,.0f} commits per second)"
    )


def lines(figures: dict[str, Any]) -> list[str]:
    """For people: workload, what it is, what came out."""
    rows = []
    for name in NAMES:
        if name in figures:
            shown = ", ".join(f"{key} {value:,}" for key, value in figures[name].items())
            rows.append((name, TITLES[name], shown))
    for name, found in figures.get("floor", {}).items():
        rows.append(("floor", f"bare engine, {name.removeprefix('commits_')} in flight", f"per_s {found['per_s']:,}"))
    cluster_figures = {**figures.get("cluster", {})}
    checks = [bench_targets.TargetCheck(**each) for each in cluster_figures.pop("targets", [])]
    for name, found in cluster_figures.items():
        shown = ", ".join(f"{key} {value}" for key, value in found.items()) if isinstance(found, dict) else f"{found:,}"
        rows.append(("cluster", name, shown))
    return [
        *(f"{name:>7}  {title:<46}  {shown}" for name, title, shown in rows),
        *(each.line for each in checks),
    ]
