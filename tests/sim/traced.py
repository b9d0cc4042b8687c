"""Prints the traces of seeds, each with what its profile is turned to (`5,flows=1`); run in a process of its own by
`test_determinism.py`.
"""

from __future__ import annotations

import sys

from tests.campaign.suite import SUITE
from tests.sim import layouts
from worldline.sim import seed_run
from worldline.sim.faults import profiles


def result(what: str, *, keep: int = 0) -> seed_run.SeedResult:
    seed, _, profile = what.partition(",")
    return seed_run.run(int(seed), SUITE, profile=profiles.of(profile, int(seed)), keep=keep)


if __name__ == "__main__":
    with layouts.scattered(1):
        for each in sys.argv[1:]:
            print(each, result(each).trace)
