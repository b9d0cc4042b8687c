"""Worlds of a simulated cluster whose cells are not all in memory: a step waits for a cell that it needs."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.campaign.suite import SUITE
from worldline.sim import seed_run
from worldline.sim.faults import profiles

COLD = "worker.cells_memory_max=1,worker.snapshot_entries=4,focus=cold"
SEEDS = (14, 4, 8, 9)  # short ones; the first of them stops hosts in every way while they wait


@pytest.mark.probe("cells.cold-miss")
def test_hosts_are_stopped_while_a_step_waits_for_a_cell() -> None:
    reached: Counter[tuple[str, str]] = Counter()
    for seed in SEEDS:
        ran = seed_run.run(seed, SUITE, profile=profiles.of(COLD, seed), halt=True)
        assert ran.failures == []
        reached.update(ran.cells)
    faults = {fault for boundary, fault in reached if boundary.startswith("B21")}
    assert faults == {"crash", "pause", "partition"}


def test_one_seed_is_one_trace_also_then() -> None:
    first, again = (seed_run.run(SEEDS[0], SUITE, profile=profiles.of(COLD, SEEDS[0])) for _ in range(2))
    assert first.trace == again.trace


def test_some_seeds_are_cold_and_the_others_are_as_they_were() -> None:
    drawn = [profiles.draw(seed).settings.worker.cells_memory_max < 10_000 for seed in range(200)]
    assert 25 < sum(drawn) < 75
