"""One seed, one trace: twice in a process, and in processes whose hashes and allocators differ."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from worldline.sim import run

SEEDS = range(1, 1 + int(os.environ.get("WORLDLINE_TWICE_SEEDS", "2")))
CHILD = Path(__file__).with_name("traced.py")
SECONDS = 300 + 10 * len(SEEDS)


def traces(hash_seed: str, allocator: str) -> str:
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONMALLOC": allocator}
    command = [sys.executable, str(CHILD), *map(str, SEEDS)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=SECONDS).stdout


def test_a_seed_run_twice_in_one_process_is_the_same_run() -> None:
    for seed in SEEDS:
        first, second = run.run(seed, keep=100_000), run.run(seed, keep=100_000)
        assert first.lines == second.lines
        assert first == second


def test_neither_hashes_nor_addresses_decide_anything() -> None:
    here = "".join(f"{seed} {run.run(seed).trace}\n" for seed in SEEDS)
    assert traces("0", "pymalloc") == traces("12345", "malloc") == here


def test_another_seed_is_another_run() -> None:
    assert run.run(1).trace != run.run(2).trace
