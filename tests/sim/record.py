"""Finds a short seed that misses each guard, and writes them down: `python -m tests.sim.record [--all]`.

What a seed does changes with the code. A recorded seed that catches nothing any more costs a search whenever the tests
run, and fails nothing; record again when they say so. Seeds that still catch their guard stay, unless `--all` is given.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import itertools
import sys
from pathlib import Path

import msgspec

from tests.campaign.faults.ablations import GUARDS
from tests.campaign.suite import SUITE
from worldline.sim import campaign, seed_run

SEEDS_MAX = 200
COMPARED = 6  # seeds that miss a guard, of which the shortest is written down
FILE = Path(__file__).with_name("recorded.json")


def catches(guard: str, seed: int) -> seed_run.SeedResult | None:
    """The result of a seed that misses a guard, if what breaks first is what the guard is there for."""
    result = campaign.one(seed, SUITE, campaign.CampaignJob(without=guard))
    broken = [each.invariant for each in result.failures[:1]]
    return result if broken and broken[0] in GUARDS[guard].breaks else None


def holds(guard: str, seed: int) -> seed_run.SeedResult:
    """The result of a seed that looks where a guard would be missed, with the guard."""
    looking = campaign.CampaignJob(without=guard).profile_of(seed, SUITE.guards)
    return seed_run.run(seed, SUITE, profile=looking, halt=True)


def search(guard: str, seeds_max: int = SEEDS_MAX) -> int | None:
    """The first seed that misses a guard."""
    return next((seed for seed in range(seeds_max) if catches(guard, seed) is not None), None)


def shortest(guard: str) -> int | None:
    """Of the first seeds that miss a guard, the one that takes the fewest turns without it and with it: every test run
    runs it without, and some of them with it.
    """
    caught = (catches(guard, seed) for seed in range(SEEDS_MAX))
    found = list(itertools.islice((result for result in caught if result is not None), COMPARED))
    return min(found, key=lambda result: result.turns + holds(guard, result.seed).turns).seed if found else None


def recorded() -> dict[str, int]:
    return msgspec.json.decode(FILE.read_bytes(), type=dict[str, int])


def renewed(guard: str, *, anew: bool) -> int | None:
    """The seed to write down for a guard: the recorded one if it still catches it, unless all are searched for anew."""
    seed = recorded().get(guard)
    return seed if not anew and seed is not None and catches(guard, seed) is not None else shortest(guard)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--all", action="store_true", help="search for every guard anew")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    with concurrent.futures.ProcessPoolExecutor(options.jobs) as pool:
        found = dict(zip(GUARDS, pool.map(functools.partial(renewed, anew=options.all), GUARDS), strict=True))
    FILE.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    sys.stdout.write(f"{found}\n")


if __name__ == "__main__":
    main()
