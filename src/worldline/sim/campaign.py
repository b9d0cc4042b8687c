"""Many seeds, and what to do with one that fails: make it smaller.

A campaign runs seeds and adds up what they hit. `shrink` looks for the least that still breaks the same invariant: it
takes fault classes out of the profile and operations out of the plan, as long as the failure stays.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from worldline.sim import faults, run, workloads

RATES = ("slow", "crash", "pause", "partition", "unknown", "late", "unavailable", "objects", "skew_us", "drift_ppm")


class Failure(msgspec.Struct, frozen=True):
    seed: int
    invariant: str
    what: str


class Campaign(msgspec.Struct, frozen=True):
    """What came of many seeds. `trace`: a hash over all of theirs."""

    seeds: int
    failures: list[Failure]
    hit: int
    of: int
    missed: list[tuple[str, str]]
    trace: str


def campaign(seeds: Iterable[int], *, without: str = "") -> Campaign:
    cells: Counter[tuple[str, str]] = Counter()
    failures: list[Failure] = []
    trace = hashlib.sha256()
    count = 0
    for seed in seeds:
        result = run.run(seed, without=without)
        count += 1
        cells.update(result.cells)
        trace.update(result.trace.encode())
        failures += [Failure(seed, each.invariant, each.what) for each in result.failures[:1]]
    wanted = faults.reachable()
    missed = [cell for cell in wanted if cell not in cells]
    return Campaign(count, failures, len(wanted) - len(missed), len(wanted), missed, trace.hexdigest())


class Shrunk(msgspec.Struct, frozen=True):
    """The least that was found to break the same invariant."""

    profile: faults.Profile
    plan: workloads.Plan
    result: run.Result


def shrink(seed: int, *, without: str = "") -> Shrunk | None:
    """Make a failing seed smaller. None if it does not fail."""
    profile = faults.draw(seed)
    plan = workloads.draw(seed, profile.clients)
    result = run.run(seed, without=without, profile=profile, plan=plan, halt=True)
    if not result.failures:
        return None
    least = Shrunk(profile, plan, result)
    smaller = True
    while smaller:
        smaller = False
        for candidate_profile, candidate_plan in _smaller(least):
            tried = run.run(seed, without=without, profile=candidate_profile, plan=candidate_plan, halt=True)
            if tried.failures and tried.failures[0].invariant == result.failures[0].invariant:
                least = Shrunk(candidate_profile, candidate_plan, tried)
                smaller = True
                break
    return least


def _smaller(shrunk: Shrunk) -> Iterator[tuple[faults.Profile, workloads.Plan]]:
    """What could be left out next."""
    profile, plan = shrunk.profile, shrunk.plan
    replace = msgspec.structs.replace
    for rate in RATES:
        if getattr(profile, rate):
            yield replace(profile, **{rate: 0}), plan
    if profile.focus:
        yield replace(profile, focus=""), plan
    if profile.adapters != faults.Adapters():
        yield replace(profile, adapters=faults.Adapters()), plan
    if profile.shuffle:
        yield replace(profile, shuffle=False), plan
    if profile.hints != "all":
        yield replace(profile, hints="all"), plan
    for client, ops in enumerate(plan.ops):
        if len(ops) > 1:
            yield profile, replace(plan, ops=[*plan.ops[:client], ops[: len(ops) // 2], *plan.ops[client + 1 :]])


def named(shrunk: Shrunk) -> list[str]:
    """The faults that are left, in words."""
    left = [f"{rate}={getattr(shrunk.profile, rate)}" for rate in RATES if getattr(shrunk.profile, rate)]
    if shrunk.profile.focus:
        left.append(f"focus={shrunk.profile.focus}")
    return [*left, f"{sum(map(len, shrunk.plan.ops))} operations"]
