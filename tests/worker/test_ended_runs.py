"""Runs without chosen ids that have ended: a world keeps the last ones, and nothing of those before them stays, neither
in memory nor in the store beside the journal.

A dose of a few hundred runs with a small bound. `make soak` lets it go on for an hour, with the bound that ships.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from pathlib import Path

import pytest

import worldline as wl
from tests import options
from worldline.base import failures, limits
from worldline.kernel import machine
from worldline.kernel.rows.row_ledger import RecordQueue
from worldline.kernel.rows.row_records import Record
from worldline.kernel.runs import LiveRun
from worldline.model.settings import JanitorSettings, Settings
from worldline.sim.runtime import keyspaces
from worldline.store import kv
from worldline.worker.held_world import HeldWorld

SECONDS = options.seconds("ended_runs_seconds")
KEPT = machine.FINISHED_KEPT_MAX if SECONDS else 40
AT_ONCE = 60  # runs of one burst in each world
OURS = tuple(
    f"worldline.{each}."
    for each in (
        "api",
        "client",
        "cluster",
        "effects",
        "features",
        "host",
        "kernel",
        "layers",
        "model",
        "observe",
        "runtime",
        "store",
        "timers",
        "worker",
    )
)
UNDER_WAY = 2 * AT_ONCE  # objects of one class that may still be there of the last burst

# The history, which is compacted; the ids of inputs, until their window is over; states, by policy; tracebacks, so many
# of a world; pointers to work that was given up, until its claim has run out.
GROWS = ("journal", "segment", "retain", "seen", "cas", "chunk", "snapshot", "baseline", "trace", "due")

SETTINGS = Settings(janitor=JanitorSettings(prove_ms=0))  # proofs have the worlds a second time, for a moment

app = wl.Program("many-runs")


@app.effect(retry=wl.Retry(attempts=1))
async def outside(number: int) -> int:
    if number % 5 == 0:
        raise ValueError("no")
    return number


@app.workflow
async def inner(number: int) -> int:
    return await outside(number)


@app.workflow
async def outer(number: int) -> int:
    async with wl.scope(timeout=60):
        first, second = await wl.gather(inner(number), outside(number + 1))
    return first + second


async def burst(world: wl.World) -> None:
    ends = await asyncio.gather(*(world.run(outer(number)) for number in range(AT_ONCE)), return_exceptions=True)
    assert {type(end) for end in ends} == {int, failures.RunFailed}


async def keys(engine: kv.Engine) -> Counter[str]:
    """How many keys there are, by what they are for."""
    found: Counter[str] = Counter()
    begin = b"\x00"
    while True:
        page = (await engine.read(kv.Range(begin, b"\xff", count_max=1_000))).page(0)
        found.update(keyspaces.place(key).what for key, _ in page.items)
        if not page.more:
            return found
        begin = page.items[-1][0] + b"\x00"


def name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def objects() -> Counter[str]:
    """How many objects of this package there are, by class."""
    gc.collect()
    return Counter(name for each in gc.get_objects() if (name := name_of(type(each))).startswith(OURS))


async def soak(folder: Path) -> None:
    async with wl.open(str(folder), host=app, settings=SETTINGS) as universe:
        worlds = [await universe.ensure(name, app) for name in ("a", "b")]
        for _ in range(2 + 2 * KEPT // AT_ONCE):  # both are full
            await asyncio.gather(*map(burst, worlds))
        connection = universe._connection
        stored, there = await keys(connection.store.engine), objects()
        until = time.monotonic() + SECONDS
        bursts = 0
        while bursts < 5 or time.monotonic() < until:
            await asyncio.gather(*map(burst, worlds))
            bursts += 1
        stored_now, there_now = await keys(connection.store.engine), objects()
        assert connection.host is not None
        for world in worlds:
            held = connection.host.worlds.peek(await world._handle.address())
            assert held is not None
            check_world(held)
        # Tests before this one in the same process may have left some, and these may go meanwhile.
        for kind in (LiveRun, Record, RecordQueue):
            assert there_now[name_of(kind)] <= there[name_of(kind)]
        more = {name: count for name in there_now if (count := there_now[name] - there[name]) > UNDER_WAY}
        assert more == {}, "nothing of the host's grows with what has ended"
        changed = {what for what in stored_now if stored_now[what] != stored[what]}
        assert changed <= {*GROWS}, (stored, stored_now)
        assert stored_now["trace"] <= 2 * limits.TRACE_SLOTS


def check_world(held: HeldWorld) -> None:
    runs = held.machine.runs.values()
    assert len(runs) == KEPT, "of all that have ended, exactly so many are there"
    assert not held.machine.live
    assert not any(run.traces._kept for run in runs), "tracebacks go with the code"
    assert all(type(run.record.buffer.items) is type(run.record.followers.items) is tuple for run in runs)
    for number in range(10):
        held.warn_once(f"ended {number}")
    assert len(held._warned) == 1, "what is no longer live is not warned of again"


def test_runs_that_have_ended_leave_a_bounded_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "FINISHED_KEPT_MAX", KEPT)
    asyncio.run(soak(tmp_path))
