"""Deletions among everything else: hosts are stopped before and after each batch, and nothing of a world comes back."""

from __future__ import annotations

import pytest

from tests import options
from tests.campaign.suite import SUITE
from worldline.sim import campaign
from worldline.sim.faults import boundaries

SEEDS = options.number("deletion_seeds")
ALL_CELLS = 60  # with so many seeds, a host is stopped in every way at every place
DOOM = "kinds=doom,janitors=2,unknown=300,anonymous=0,doors=0,hostile=0,fragile=0,excursion=0,backlog=0,abroad=0"


@pytest.mark.parametrize("focus", boundaries.DELETING)
def test_a_host_is_stopped_around_every_batch_of_a_deletion(focus: str) -> None:
    wanted = {cell for cell in boundaries.reachable() if cell[0] in boundaries.BOUNDARIES[focus]}
    reached: set[boundaries.Cell] = set()
    for seed in range(SEEDS):
        ran = campaign.one(seed, SUITE, campaign.CampaignJob(profile=f"{DOOM},focus={focus}"))
        assert ran.failures == []
        reached |= wanted & set(ran.cells)
        if reached == wanted:
            break
    assert reached
    assert reached == wanted or SEEDS < ALL_CELLS
