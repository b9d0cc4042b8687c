"""One seed, one trace: twice in a process, and in a process whose hashes and allocator differ."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from worldline.sim import run

SEEDS = range(1, 1 + int(os.environ.get("WORLDLINE_TWICE_SEEDS", "2")))
LINES = 100_000
CHILD = Path(__file__).with_name("traced.py")
SECONDS = 300 + 10 * len(SEEDS)
HASHES = ("0", "12345")  # this process may have one of them


@pytest.fixture(scope="module")
def first() -> list[run.Result]:
    """What the seeds do, to be compared with what they do next."""
    return [run.run(seed, keep=LINES) for seed in SEEDS]


def test_a_seed_run_twice_in_one_process_is_the_same_run(first: list[run.Result]) -> None:
    for before in first:
        again = run.run(before.seed, keep=LINES)
        assert before.lines == again.lines
        assert before == again


def test_neither_hashes_nor_addresses_decide_anything(first: list[run.Result]) -> None:
    hashes = next(each for each in HASHES if each != os.environ.get("PYTHONHASHSEED"))
    env = {**os.environ, "PYTHONHASHSEED": hashes, "PYTHONMALLOC": "malloc"}
    command = [sys.executable, str(CHILD), *map(str, SEEDS)]
    child = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=SECONDS)
    assert child.stdout == "".join(f"{each.seed} {each.trace}\n" for each in first)


def test_another_seed_is_another_run(first: list[run.Result]) -> None:
    assert len({each.trace for each in first}) == len(SEEDS) > 1
