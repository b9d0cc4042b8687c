"""Prints the traces of seeds; run in a process of its own by `test_determinism.py`."""

from __future__ import annotations

import sys

from worldline.sim import run

if __name__ == "__main__":
    for seed in map(int, sys.argv[1:]):
        print(seed, run.run(seed).trace)
