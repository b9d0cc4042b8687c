"""The test of the tester: every guard, switched off, breaks what it is there for."""

from __future__ import annotations

import sys

import pytest

from tests import options
from tests.campaign.faults import ablations
from tests.campaign.suite import SUITE
from tests.sim import record
from worldline.sim import campaign, shrinker
from worldline.sim.faults import faulty_store

SEARCHES_ANEW = options.flag("ablation_search")


@pytest.mark.parametrize("guard", list(ablations.GUARDS))
def test_a_missing_guard_is_noticed(guard: str) -> None:
    seed = record.recorded().get(guard)
    if not SEARCHES_ANEW and seed is not None and record.catches(guard, seed) is not None:
        return
    found = record.search(guard)
    assert found is not None, f"nobody misses {guard!r} in {record.SEEDS_MAX} seeds"
    if not SEARCHES_ANEW:
        sys.stderr.write(f"seed {seed} does not miss {guard!r} any more, {found} does: python -m tests.sim.record\n")


def test_there_are_guards_enough() -> None:
    assert len(ablations.GUARDS) >= 11
    assert list(record.recorded()) == list(ablations.GUARDS)


def test_where_a_guard_would_be_missed_all_is_well_with_it() -> None:
    """The profiles that look for missing guards break nothing by themselves. Some guards share one, and its seed."""
    looks = {(record.recorded()[guard], missing.look): guard for guard, missing in ablations.GUARDS.items()}
    for (seed, look), guard in list(looks.items())[:: 1 if SEARCHES_ANEW else 3]:
        if look:
            assert record.holds(guard, seed).failures == [], guard


def test_a_failure_shrinks_to_what_it_takes() -> None:
    """Steps that do not consume break with no fault at all, and with one operation."""
    shrunk = shrinker.shrink(0, SUITE, job=campaign.CampaignJob(without="consume"))
    assert shrunk is not None
    assert (shrunk.invariant, shrunk.faults, shrunk.background) == ("J6", [], [])
    assert "only=" in shrunk.profile.split(",")
    assert "ops_max=1" in shrunk.profile.split(",")
    assert shrinker.shrink(0, SUITE) is None


def test_what_is_left_of_a_failure_fails_again() -> None:
    """A lost answer that is taken for success breaks nothing as long as no answer is lost."""
    job = campaign.CampaignJob(without="unknown")
    seed = record.recorded()["unknown"]
    shrunk = shrinker.shrink(seed, SUITE, job=job, runs_max=10)
    assert shrunk is not None
    assert 0 < len(shrunk.faults) <= shrunk.drawn
    again = campaign.one(seed, SUITE, campaign.CampaignJob(without="unknown", profile=shrunk.profile))
    assert (again.failures[0].invariant, again.struck) == (shrunk.invariant, shrunk.faults)


def test_a_fault_is_told_in_words() -> None:
    struck = faulty_store.Struck(3, 12_345_678, "host-0/2", "crash", "B7 after append, before publish")
    assert str(struck) == "  12.346 s  host-0/2: crash (B7 after append, before publish)"
