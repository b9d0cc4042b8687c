"""The fork storm: seeds in which clients do little else than fork worlds, and forks, while everything fails."""

from __future__ import annotations

import pytest

from tests import options
from tests.campaign.suite import SUITE
from worldline.sim import campaign
from worldline.sim.faults import boundaries, profiles

SEEDS = options.number("fork_seeds")
SHARES = max(2, SEEDS // 50)
STORM = campaign.CampaignJob(profile="forks=3,focus=fork,clients=1,kinds=add,hostile=0,fragile=0,backlog=0")


@pytest.mark.parametrize("share", range(SHARES))
def test_a_storm_of_forks_breaks_nothing(share: int) -> None:
    seeds = range(SEEDS * share // SHARES, SEEDS * (share + 1) // SHARES)
    assert campaign.campaign(seeds, SUITE, job=STORM).failures == []


def test_some_seeds_have_forks_and_look_at_them() -> None:
    """So that a campaign as it comes stops hosts inside forks, too."""
    drawn = [profiles.draw(seed) for seed in range(300)]
    forking = [each for each in drawn if each.forks]
    assert 15 < len(forking) < 60
    assert sum(each.focus in boundaries.FORKING for each in forking) > len(forking) // 2


def test_a_fork_is_stopped_where_it_records_its_first_own_state() -> None:
    """Drawn seeds that look there break each of its places, in every way; as they came, 600 seeds missed some."""
    looking = [seed for seed in range(300) if profiles.draw(seed).focus == boundaries.FORKING[-1]]
    reached: set[boundaries.Cell] = set()
    wanted = {cell for cell in boundaries.reachable() if cell[0] in boundaries.BOUNDARIES[boundaries.FORKING[-1]]}
    for seed in looking:
        ran = campaign.one(seed, SUITE)
        assert ran.failures == []
        reached |= wanted & set(ran.cells)
        if reached == wanted:
            break
    assert reached == wanted
