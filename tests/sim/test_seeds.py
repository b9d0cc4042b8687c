"""The campaign: seeds that must all hold, and cells that must all be hit."""

from __future__ import annotations

import os
from collections import Counter

from worldline.sim import checkers, faults, run

SEEDS = int(os.environ.get("WORLDLINE_SEEDS", "24"))


def test_every_seed_holds() -> None:
    cells: Counter[tuple[str, str]] = Counter()
    broken = {}
    for seed in range(SEEDS):
        result = run.run(seed)
        cells.update(result.cells)
        if not result.ok:
            broken[seed] = [f"{each.invariant}: {each.what}" for each in result.failures[:3]]
    assert broken == {}
    assert not [cell for cell in cells if cell[0] in faults.UNREACHABLE]
    if SEEDS >= 300:
        assert sorted(faults.reachable()) == sorted(cells)


def test_the_table_names_every_invariant() -> None:
    """Those of the plan, by family and number."""
    families = {"K": 6, "L": 6, "J": 8, "E": 8, "T": 4, "F": 4, "W": 5, "C": 5, "R": 5, "D": 2, "V": 6}
    wanted = [f"{family}{number}" for family, count in families.items() for number in range(1, count + 1)]
    assert [each for each in checkers.INVARIANTS if each not in ("PROGRAM", "BUG")] == wanted
    assert {held.where for held in checkers.INVARIANTS.values()} == {"audit", "end", "other", "absent"}
