"""Worlds of flow domains among faults: seeds, and what is drawn for them."""

from __future__ import annotations

import random

import pytest

from tests import options
from tests.campaign.check import flow_domains as checks
from tests.campaign.check import flow_model
from tests.campaign.load import clerks, flow_domains
from tests.campaign.suite import SUITE
from worldline.sim import campaign
from worldline.sim.faults import profiles
from worldline.sim.load.history import Broken

SEEDS = options.number("flow_seeds")
SHARES = max(1, SEEDS // 50)
MANY = 20  # seeds: in fewer it may not happen
BUSY = campaign.CampaignJob(profile="flows=2,clients=1,kinds=add,hostile=0,fragile=0,backlog=0,sketches=0,forks=0")


@pytest.mark.parametrize("share", range(SHARES))
def test_flow_domains_among_faults(share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing breaks, every step of every world was compared with the model, and intents have ended in several ways.
    Some were abandoned: with effects open, of which some had an outcome afterwards, or in a queue. Runs have acted.
    """
    seen: list[checks.FlowDomains] = []

    class Seen(checks.FlowDomains):
        def __init__(self, broken: Broken) -> None:
            super().__init__(broken)
            seen.append(self)

    monkeypatch.setattr(checks, "FlowDomains", Seen)
    seeds = range(SEEDS * share // SHARES, SEEDS * (share + 1) // SHARES)
    assert campaign.campaign(seeds, SUITE, job=BUSY).failures == []
    lives = [life for each in seen for life in each.lives.values()]
    assert [life.name for life in lives if not life.is_known] == []
    cells = [cell for life in lives for cell in life.model.cells.values()]
    assert len({end for cell in cells for end in cell.ends.values()}) >= 4
    assert {where for cell in cells for where in cell.abandoned.values()} == {flow_model.OPEN, flow_model.QUEUED}
    told = {status for life in lives for status in life.model.runs_told.values()}
    assert told >= {"complete", "error"}
    if len(seeds) >= MANY:
        assert [id for cell in cells for id in cell.late] != []
        assert told == {"complete", "error", clerks.LATE, clerks.REFUSED}


def test_some_seeds_have_flow_domains() -> None:
    assert 20 < sum(bool(profiles.draw(seed).flows) for seed in range(300)) < 60


def test_plans_have_everything() -> None:
    drawn = [op for number in range(40) for ops in flow_domains.plan(str(number), random.Random(number)) for op in ops]
    assert {op.kind for op in drawn} >= set(flow_domains.KINDS)
    assert {flow_domains.HOWS[op.amount // 2 % len(flow_domains.HOWS)] for op in drawn if op.kind == "pay"} == set(
        flow_domains.HOWS
    )


def test_a_seed_without_them_does_not_depend_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """So recorded seeds stay what they are."""
    seed = next(seed for seed in range(100) if profiles.draw(seed).flows)
    drawn = profiles.draw(seed)
    monkeypatch.setattr(profiles, "FLOWS", 0)
    assert profiles.changed(drawn, "flows=0") == profiles.draw(seed)
