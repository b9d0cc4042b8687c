"""Finds a short seed that misses each guard, and writes them down: `python -m tests.sim.record`.

What a seed does changes with the code. A recorded seed that catches nothing any more costs a search whenever the tests
run, and fails nothing; record again when they say so.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import msgspec

from worldline.sim import campaign, run
from worldline.sim.faults import ablations

SEEDS_MAX = 200
COMPARED = 3  # seeds that miss a guard, of which the shortest is written down
FILE = Path(__file__).with_name("recorded.json")


def catches(guard: str, seed: int) -> run.Result | None:
    """The result of a seed that misses a guard, if what breaks first is what the guard is there for."""
    result = campaign.one(seed, campaign.Job(without=guard), None)
    broken = [each.invariant for each in result.failures[:1]]
    return result if broken and broken[0] in ablations.GUARDS[guard].breaks else None


def search(guard: str, seeds_max: int = SEEDS_MAX) -> int | None:
    """The first seed that misses a guard."""
    return next((seed for seed in range(seeds_max) if catches(guard, seed) is not None), None)


def shortest(guard: str) -> int | None:
    """Of the first seeds that miss a guard, the one that takes the fewest turns: every test run runs it again."""
    caught = (catches(guard, seed) for seed in range(SEEDS_MAX))
    found = list(itertools.islice((result for result in caught if result is not None), COMPARED))
    return min(found, key=lambda result: result.turns).seed if found else None


def recorded() -> dict[str, int]:
    return msgspec.json.decode(FILE.read_bytes(), type=dict[str, int])


if __name__ == "__main__":
    found = {guard: shortest(guard) for guard in ablations.GUARDS}
    FILE.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    sys.stdout.write(f"{found}\n")
