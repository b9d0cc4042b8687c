"""`worldline bench --cluster`: roles as processes of their own on one server, under a steady load.

Two workers, an effect worker, a timer worker and an orchestrator are started by the command line, as an operator would;
this process is a client. First a steady load is offered: events at a fixed rate, whether or not they are applied in
time; one in fifty is timed from sending to its entry. Then as many events as possible are sent, until all are applied.
Then one worker is killed, and every world asked until it answers again.

`inbox_to_journal` is what the client sees: from before it sends until it has seen the entry, so more than the way
itself. `heartbeat` and `effect` (from the step that asked until the result was journaled) are what the workers
measured, read from their own metrics; percentiles there are interpolated between the bounds of their histograms.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

import worldline as wl
from worldline.base import env as envs
from worldline.base import env_os, errors
from worldline.bench import bench_targets, bench_workloads
from worldline.runtime import environment, store_opening

WORLDS = 100
OFFERED_PER_S = 1_000
FOLLOWED_EVERY = 50  # one event in so many is followed to its entry
RUNS_PER_S = 10
SENDERS = 64
WORKERS = ("w1", "w2")
READY_SECONDS = 60.0
SETTLED_SECONDS = 120.0
LEASE_TTL_SECONDS = 3.0

Progress = Callable[[int, int, str], None]


class RoleProcess:
    """A role in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        self.process = process
        self.name = name
        self.port = 0

    async def metrics(self) -> dict[str, float]:
        """Its metrics by their names, labels included."""
        # A proxy of the environment must not get requests to this machine.
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.get(f"http://127.0.0.1:{self.port}/metrics")
        lines = [line for line in answer.text.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    async def stop(self) -> None:
        """In order, or with force if that takes too long."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):  # then it is killed: no process may be left behind
            async with asyncio.timeout(READY_SECONDS):
                await self.process.wait()
        await self.kill()


def check(url: str) -> None:
    if not url or not store_opening.scheme(url).startswith("postgres"):
        raise errors.BadInput("a cluster needs a server: give --store postgresql://...")


async def run(url: str, *, seconds: float, check: bool = False, progress: Progress) -> dict[str, Any]:
    """`check`: offer the steady load in rounds, and judge them by what is promised."""
    env = env_os.OsEnv()
    async with _members(url) as members, wl.open(url, create=True) as universe:
        progress(0, 4, "starting")
        worlds = [await universe.ensure(f"cluster-{number}", bench_workloads.app) for number in range(WORLDS)]
        await _settle(worlds)  # the first round must not measure how worlds are placed
        progress(1, 4, "a steady load")
        rounds = [await _round(members, worlds, env, seconds) for _ in range(bench_targets.ROUNDS if check else 1)]
        progress(2, 4, "as much as goes in")
        saturation = await _saturate(worlds, env, seconds)
        progress(3, 4, "failover")
        failover = await _fail_over(members, worlds, env)
        progress(4, 4, "done")
    return {
        "offered_per_s": OFFERED_PER_S,
        **rounds[-1],
        **({"targets": [msgspec.to_builtins(each) for each in bench_targets.judge(rounds)]} if check else {}),
        "saturation_per_s": saturation,
        "failover_s": failover,
        "lease_ttl_s": LEASE_TTL_SECONDS,
        "roles": {"workers": len(WORKERS), "adapters": 1, "timers": 1, "orchestrators": 1},
    }


async def _round(members: list[RoleProcess], worlds: list[wl.World], env: envs.Env, seconds: float) -> dict[str, Any]:
    """Return what the client saw of a steady load, and what the workers measured meanwhile."""
    workers = [member for member in members if member.name in WORKERS]
    # Counters count from the start of the process: a round is their difference.
    before = [await member.metrics() for member in workers]
    steady = await _steady(worlds, env, seconds)
    measured = [_since(then, await member.metrics()) for then, member in zip(before, workers, strict=True)]
    return {
        **steady,
        "heartbeat_p95_ms": _p95_ms(measured, "worldline_heartbeat_seconds"),
        "effect_p95_ms": _p95_ms(measured, "worldline_effect_seconds"),
    }


def _since(earlier: dict[str, float], now: dict[str, float]) -> dict[str, float]:
    """Return what counters have counted meanwhile."""
    return {name: value - earlier.get(name, 0.0) for name, value in now.items()}


# --- Processes -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _members(url: str) -> AsyncIterator[list[RoleProcess]]:
    app = str(Path(bench_workloads.__file__))
    ttl = ["--lease-ttl", str(LEASE_TTL_SECONDS), "--scan", str(LEASE_TTL_SECONDS)]
    commands: list[tuple[str, list[str]]] = [(name, ["worker", app, *ttl]) for name in WORKERS]
    commands += [("a1", ["adapter", app]), ("t1", ["timer"]), ("o1", ["orchestrator"])]
    members: list[RoleProcess] = []
    try:
        # All are started before the first is waited for: they open the store at the same time.
        for name, words in commands:
            members.append(await _start(url, name, words))
        for member in members:
            await _ready(member)
        yield members
    finally:
        await asyncio.gather(*(member.stop() for member in members))


async def _start(url: str, name: str, words: list[str]) -> RoleProcess:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "worldline.cli",
        *words,
        "--name",
        name,
        "--json",
        "--metrics",
        "127.0.0.1:0",
        env=environment.variables_with_store(url),
        stdout=asyncio.subprocess.PIPE,
    )
    return RoleProcess(process, name)


async def _ready(member: RoleProcess) -> None:
    assert member.process.stdout is not None
    async with asyncio.timeout(READY_SECONDS):
        line = await member.process.stdout.readline()
    if not line:
        raise errors.BadInput(f"{member.name} did not start; what it says is above")
    member.port = json.loads(line)["metrics_port"]


# --- Loads ---------------------------------------------------------------------------------------------------------


async def _settle(worlds: list[wl.World]) -> None:
    """Every world has a holder and has answered."""
    async with asyncio.timeout(SETTLED_SECONDS):
        for sent in [await world.send(bench_workloads.Added(0)) for world in worlds]:
            await sent.applied()


async def _steady(worlds: list[wl.World], env: envs.Env, seconds: float) -> dict[str, Any]:
    """Offer events at a fixed rate, whether those before are through or not."""
    before = await _total(worlds)
    sends, applied, runs = bench_workloads.Timed(env), bench_workloads.Timed(env), bench_workloads.Timed(env)
    tasks: list[asyncio.Task[None]] = []

    async def send(number: int) -> None:
        began_us = env.monotonic_us()
        sent = await worlds[number % len(worlds)].send(bench_workloads.Added(1))
        sends.latencies_us.append(env.monotonic_us() - began_us)
        if number % FOLLOWED_EVERY == 0:  # a few: following each would be most of the load
            await sent.applied()
            applied.latencies_us.append(env.monotonic_us() - began_us)

    async def call(number: int) -> None:
        began_us = env.monotonic_us()
        await worlds[number % len(worlds)].run(bench_workloads.one(number))
        runs.latencies_us.append(env.monotonic_us() - began_us)

    started_us = env.monotonic_us()
    offered = called = 0
    while (passed := (env.monotonic_us() - started_us) / 1_000_000) < seconds:
        # By the clock, not by answers: a sender that waits for a slow system would offer it less, and hide how slow it
        # is.
        while offered < passed * OFFERED_PER_S:
            tasks.append(asyncio.create_task(send(offered)))
            offered += 1
        while called < passed * RUNS_PER_S:
            tasks.append(asyncio.create_task(call(called)))
            called += 1
        await asyncio.sleep(0.001)
    await asyncio.gather(*tasks)
    await _reach(worlds, before + offered)
    return {
        "sent": offered,
        "send_p95_ms": round(sends.percentile_ms(0.95), 3),
        "inbox_to_journal_p50_ms": round(applied.percentile_ms(0.50), 3),
        "inbox_to_journal_p95_ms": round(applied.percentile_ms(0.95), 3),
        "inbox_to_journal_p99_ms": round(applied.percentile_ms(0.99), 3),
        "run_of_one_effect_p95_ms": round(runs.percentile_ms(0.95), 3),
    }


async def _saturate(worlds: list[wl.World], env: envs.Env, seconds: float) -> float:
    """Events applied per second, until the last one is."""
    before = await _total(worlds)
    started_us = env.monotonic_us()
    timed = bench_workloads.Timed(env)
    await timed.run(seconds, SENDERS, lambda turn: _patiently(worlds[turn % len(worlds)]))
    await _reach(worlds, before + len(timed.latencies_us))
    return round(len(timed.latencies_us) * 1_000_000 / (env.monotonic_us() - started_us), 1)


async def _patiently(world: wl.World) -> None:
    while True:
        try:
            await world.send(bench_workloads.Added(1))
        except errors.Overloaded as error:  # refused, not lost: it counts when it is in, as it does for a client
            await asyncio.sleep(error.retry_after)
        else:
            return


async def _total(worlds: list[wl.World]) -> int:
    return sum([(await world.state(bench_workloads.EventCounter)).total for world in worlds])


async def _reach(worlds: list[wl.World], total: int) -> None:
    """Wait until everything that was sent is applied: once, no more and no less."""
    async with asyncio.timeout(SETTLED_SECONDS):
        found = await _total(worlds)
        while found < total:
            await asyncio.sleep(0.05)
            found = await _total(worlds)
    assert found == total, "an increment was doubled"


async def _fail_over(members: list[RoleProcess], worlds: list[wl.World], env: envs.Env) -> dict[str, float]:
    """Kill a worker; how long until worlds answer, those of the other included."""
    victim = next(member for member in members if member.name == WORKERS[0])
    assert victim.process.pid != os.getpid()  # what is killed next is another process
    await victim.kill()
    killed_us = env.monotonic_us()

    async def answer(world: wl.World) -> int:
        await (await world.send(bench_workloads.Added(0))).applied()
        return env.monotonic_us() - killed_us

    log = logging.getLogger("worldline")
    before = log.level
    log.setLevel(logging.ERROR)  # that no worker hosts them for a while is what is measured
    try:
        async with asyncio.timeout(SETTLED_SECONDS):
            # All at once: asked one after the other, later worlds would have more time.
            took_us: list[int] = await _gather([answer(world) for world in worlds])
    finally:
        log.setLevel(before)
    return {
        "p50": round(bench_workloads.percentile(took_us, 0.50) / 1_000_000, 3),
        "max": round(max(took_us) / 1_000_000, 3),
    }


async def _gather(waiting: list[Awaitable[int]]) -> list[int]:
    return list(await asyncio.gather(*waiting))


def _p95_ms(measured: list[dict[str, float]], name: str) -> float:
    """The 95th percentile of a histogram, over all label values and processes."""
    below: dict[float, float] = {}
    for metrics in measured:
        for series, count in metrics.items():
            if series.startswith(f"{name}_bucket{{"):
                bound = float(series.rpartition('le="')[2].partition('"')[0])
                below[bound] = below.get(bound, 0.0) + count
    bounds = sorted(below)
    if not bounds or below[bounds[-1]] == 0:
        raise errors.BadInput(f"no worker has measured {name}")
    wanted = 0.95 * below[bounds[-1]]
    lower, counted = 0.0, 0.0
    for bound in bounds:
        # Between two bounds a histogram knows no more: the share of the way is the usual estimate.
        if below[bound] >= wanted and bound != float("inf"):
            share = (wanted - counted) / (below[bound] - counted)
            return round((lower + (bound - lower) * share) * 1000, 3)
        lower, counted = bound, below[bound]
    return float("inf")
