"""Forged answers and senders as a load: a client's, a world's, and those of a forger that sees the whole store."""

from __future__ import annotations

import random

import pytest

from tests import options
from tests.campaign.load import forgers
from tests.campaign.suite import SUITE
from worldline.base import probes
from worldline.sim import campaign
from worldline.sim.faults import profiles

FORGING = campaign.CampaignJob(
    profile="forgers=2,clients=1,kinds=add,hostile=0,fragile=0,backlog=0,sketches=0,forks=0,flows=0"
)
SEEDS = range(options.number("forged_seeds"))


@pytest.mark.probe("messages.forged-answer")
def test_no_question_is_answered_by_another_world() -> None:
    """And forged answers do reach the kernel of the world that asks."""
    with probes.collect() as hit:
        for seed in SEEDS:
            assert campaign.one(seed, SUITE, FORGING).failures == []
    assert hit["messages.forged-answer"] >= len(SEEDS)


def test_some_seeds_have_forgers() -> None:
    assert 15 < sum(bool(profiles.draw(seed).forgers) for seed in range(300)) < 50


def test_plans_have_everything() -> None:
    drawn = [op for number in range(20) for ops in forgers.plan(str(number), random.Random(number)) for op in ops]
    assert {op.kind for op in drawn} == {*forgers.KINDS}


def test_a_seed_without_them_does_not_depend_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """So recorded seeds stay what they are."""
    seed = next(seed for seed in range(100) if profiles.draw(seed).forgers)
    drawn = profiles.draw(seed)
    monkeypatch.setattr(profiles, "FORGERS", 0)
    assert profiles.changed(drawn, "forgers=0") == profiles.draw(seed)
