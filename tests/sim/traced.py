"""Prints the traces of seeds, each with what its profile is turned to (`5,flows=1`); run in a process of its own by
`test_determinism.py`. With `--lines`, every line of them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from tests.arch.trees import ROOT
from tests.campaign.suite import SUITE
from tests.sim import layouts
from worldline.sim import seed_run
from worldline.sim.faults import profiles


def result(what: str, *, keep: int = 0) -> seed_run.SeedResult:
    seed, _, profile = what.partition(",")
    return seed_run.run(int(seed), SUITE, profile=profiles.of(profile, int(seed)), keep=keep)


LINES = 1_000_000


def difference(seeds: Sequence[str]) -> str:
    """Say which of these seeds is another run in this process than in one of its own, and where that begins."""
    for each in seeds:
        here = result(each, keep=LINES).lines
        command = [sys.executable, "-m", __name__, "--lines", each]
        there = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
        if here != there:
            number = next((i for i, pair in enumerate(zip(here, there, strict=False)) if pair[0] != pair[1]), -1)
            return (
                f"seed {each}, line {number} of {len(here)} and {len(there)}: {here[number:][:1]} {there[number:][:1]}"
            )
    return "none of these seeds"


if __name__ == "__main__":
    with layouts.scattered(1):
        match sys.argv[1:]:
            case ["--lines", seed]:
                print(*result(seed, keep=LINES).lines, sep="\n")
            case seeds:
                for each in seeds:
                    print(each, result(each).trace)
