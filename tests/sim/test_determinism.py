"""One seed, one trace: twice in a process, and in a process whose hashes, allocator and addresses differ."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
from typing import Any

import pytest

from tests import options
from tests.arch.trees import ROOT
from tests.campaign.load import fragile
from tests.sim import layouts, traced
from worldline.sim import seed_run
from worldline.sim.runtime.sim_loop import SimFuture, SimLoop, SimMachine, SimTask

# Some cycles of the first have several worlds, and the callbacks of a host are taken in a drawn order. The second has
# flow domains, and no such order.
SEEDS = ["1", "5,flows=1,ops_max=5", *map(str, range(6, 2_000))][: options.number("twice_seeds")]
SHORT = "7"
LINES = 100_000
SECONDS = 300 + 10 * len(SEEDS)
HASHES = ("0", "12345")  # this process may have one of them


@pytest.fixture(scope="module")
def first() -> dict[str, seed_run.SeedResult]:
    """What the seeds do, to be compared with what they do next."""
    return {each: traced.result(each, keep=LINES) for each in SEEDS}


def test_a_seed_run_twice_in_one_process_is_the_same_run(first: dict[str, seed_run.SeedResult]) -> None:
    for seed, before in first.items():
        with layouts.scattered(before.seed):
            again = traced.result(seed, keep=LINES)
        assert before.lines == again.lines
        assert before == again


def test_neither_hashes_nor_addresses_decide_anything(first: dict[str, seed_run.SeedResult]) -> None:
    hashes = next(each for each in HASHES if each != os.environ.get("PYTHONHASHSEED"))
    env = {**os.environ, "PYTHONHASHSEED": hashes, "PYTHONMALLOC": "malloc"}
    command = [sys.executable, "-m", "tests.sim.traced", *SEEDS]
    child = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True, timeout=SECONDS)
    assert child.stdout == "".join(f"{seed} {result.trace}\n" for seed, result in first.items())


def test_another_seed_is_another_run(first: dict[str, seed_run.SeedResult]) -> None:
    assert len({each.trace for each in first.values()}) == len(SEEDS) > 1


def test_what_was_counted_before_changes_no_program() -> None:
    """The versions of a program are hashed when they are made: what other seeds have counted is no part of them."""
    spec = importlib.util.spec_from_file_location(fragile.__name__, fragile.__file__)
    assert spec is not None
    assert spec.loader is not None
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    again._calls["an id"] = again._deaths["an id"] = 1
    assert {name: each.hash for name, each in again.VERSIONS.items()} == {
        name: each.hash for name, each in fragile.VERSIONS.items()
    }


# --- The test of these tests ---------------------------------------------------------------------------------------


def in_layouts(seed: str) -> list[str]:
    """The traces of a seed whose objects stand elsewhere each time."""
    traces = []
    for layout in (1, 2):
        with layouts.scattered(layout):
            traces.append(traced.result(seed).trace)
    return traces


def _first_of_a_set(loop: SimLoop, host: SimMachine) -> Any:
    handle = next(iter(set(host.queue)))
    host.queue.remove(handle)
    return handle


def _first_of_a_set_of_tasks(loop: SimLoop, host: SimMachine) -> Any:
    steps = {task: each for each in host.queue if isinstance(task := _task_of(each), SimTask)}
    handle = steps[next(iter(set(steps)))] if steps else host.queue[0]
    host.queue.remove(handle)
    return handle


def _task_of(handle: Any) -> object:
    return getattr(handle._callback, "__self__", None)


def test_callbacks_in_a_set_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimLoop, "_take", _first_of_a_set)
    assert len(set(in_layouts(SHORT))) == 2


@pytest.mark.parametrize("by_address", [False, True])
def test_tasks_in_a_set_are_noticed_if_they_hash_by_address(by_address: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they come in an order that is the same each time."""
    monkeypatch.setattr(SimLoop, "_take", _first_of_a_set_of_tasks)
    if by_address:
        monkeypatch.setattr(SimTask, "__hash__", object.__hash__)
    assert len(set(in_layouts(SHORT))) == 1 + by_address


@pytest.mark.parametrize("by_address", [False, True])
def test_futures_in_a_set_come_as_they_were_made(by_address: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a set that asyncio makes, too."""
    if by_address:
        monkeypatch.setattr(SimFuture, "__hash__", object.__hash__)

    async def main(loop: SimLoop) -> list[int]:
        futures = [loop.create_future() for _ in range(20)]
        for each in futures:
            each.set_result(None)
            await asyncio.sleep(0)
        done, _ = await asyncio.wait(futures)
        return [futures.index(each) for each in done]

    orders = []
    for layout in (1, 2):
        loop = SimLoop("0")
        with layouts.scattered(layout):
            orders.append(loop.run(main(loop), seconds=1))
        loop.finish()
    assert (orders[0] != orders[1]) is by_address
