"""The campaign: seeds that must all hold, in shares that can run side by side."""

from __future__ import annotations

import pytest

from tests import options
from tests.campaign.suite import SUITE
from worldline.base import errors
from worldline.sim import campaign, seed_run
from worldline.sim.check import checkers
from worldline.sim.faults import boundaries, profiles
from worldline.sim.runtime.sim_loop import SimLoop

SEEDS = options.number("seeds")
SHARES = max(12, SEEDS // 500)


@pytest.mark.parametrize("share", range(SHARES))
def test_every_seed_holds(share: int) -> None:
    seeds = range(SEEDS * share // SHARES, SEEDS * (share + 1) // SHARES)
    ran = campaign.campaign(seeds, SUITE)
    assert ran.failures == []
    assert ran.seeds == len(seeds)
    assert ran.hit > ran.of // 16  # some of them, also in a few seeds; `make sim` wants them all


def test_unreachable_boundaries_cannot_be_stopped_at() -> None:
    """Each says why: abolished by the design and asserted by the auditor, or nothing to break yet."""
    reachable = [boundary for boundary, _ in boundaries.reachable()]
    assert not set(reachable) & set(boundaries.UNREACHABLE)
    assert len(boundaries.reachable()) == 4 * 2 * len(boundaries.BOUNDARIES) - 2 * len(boundaries.READS)


def test_the_table_names_every_invariant() -> None:
    """By family and number, without gaps."""
    families = {"K": 6, "L": 6, "J": 8, "E": 8, "T": 4, "F": 7, "W": 5, "C": 5, "R": 5, "D": 2, "V": 6, "H": 6}
    wanted = [f"{family}{number}" for family, count in families.items() for number in range(1, count + 1)]
    ours = ("ONCE", "KEPT", "ORDER", "TIME", "WAIT", "POISON", "BLAME", "INNOCENT", "FORK", "GONE", "PROGRAM", "BUG")
    assert [each for each in checkers.INVARIANTS if each not in ours] == wanted
    assert {held.where for held in checkers.INVARIANTS.values()} == {"audit", "end", "other", "absent"}


def test_a_run_that_cannot_begin_leaves_no_loop_open(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[SimLoop] = []

    class Seen(SimLoop):
        def __init__(self, seed: str, *, shuffle: bool = False) -> None:
            super().__init__(seed, shuffle=shuffle)
            made.append(self)

    monkeypatch.setattr(seed_run, "SimLoop", Seen)
    with pytest.raises(errors.BadInput, match="no operations of kind 'naps'"):
        seed_run.run(0, SUITE, profile=profiles.of("kinds=naps", 0))
    assert [loop.is_closed() for loop in made] == [True]
