"""The campaign: seeds that must all hold, and cells that must all be hit."""

from __future__ import annotations

import os

from worldline.sim import campaign, checkers, faults

SEEDS = int(os.environ.get("WORLDLINE_SEEDS", "60"))
COVERING_SEEDS = 400  # with so many, every cell must have been hit


def test_every_seed_holds() -> None:
    ran = campaign.campaign(range(SEEDS))
    assert ran.failures == []
    assert ran.seeds == SEEDS
    assert ran.hit > ran.of // 2
    if SEEDS >= COVERING_SEEDS:
        assert ran.missed == []


def test_unreachable_boundaries_cannot_be_stopped_at() -> None:
    """Each says why; the auditor asserts the first (J6), the others are single batches."""
    reachable = [boundary for boundary, _ in faults.reachable()]
    assert not set(reachable) & set(faults.UNREACHABLE)


def test_the_table_names_every_invariant() -> None:
    """Those of the plan, by family and number."""
    families = {"K": 6, "L": 6, "J": 8, "E": 8, "T": 4, "F": 4, "W": 5, "C": 5, "R": 5, "D": 2, "V": 6}
    wanted = [f"{family}{number}" for family, count in families.items() for number in range(1, count + 1)]
    assert [each for each in checkers.INVARIANTS if each not in ("PROGRAM", "BUG")] == wanted
    assert {held.where for held in checkers.INVARIANTS.values()} == {"audit", "end", "other", "absent"}
