"""One fault at every place in turn: the run in which nothing goes wrong but once, right there."""

from __future__ import annotations

from typing import Literal

import pytest

from tests import options
from tests.campaign import suite as own
from tests.campaign.load import workloads
from tests.campaign.load.workloads import Op
from worldline.model.settings import AdapterSettings, JanitorSettings, Settings, TimerSettings, WorkerSettings
from worldline.sim import seed_run
from worldline.sim.faults import profiles

STRIDE = options.number("sweep_stride")

PLAN = workloads.Plan(
    worlds=[("counter-0", "counters"), ("account-0", "bank"), ("account-1", "bank"), ("shop-0", "orders")],
    ops=[
        [
            Op("a", "add", "counter-0", 5),
            Op("b", "transfer", "account-0", 30, "account-1"),
            Op("c", "order", "shop-0", 700),
            Op("d", "ask", "counter-0", 2),
        ]
    ],
    pause_ms=10,
)
SETTINGS = Settings(
    worker=WorkerSettings(lease_ttl_ms=1_000, heartbeat_ms=250, scan_ms=500, snapshot_entries=6, idle_release_ms=2_000),
    adapter=AdapterSettings(claim_ttl_ms=1_000, renew_ms=300, scan_ms=500),
    timer=TimerSettings(scan_ms=500),
    janitor=JanitorSettings(prove_ms=0),
)


def once(nth: int, fault: Literal["crash", "pause", "partition"], *, split: bool) -> seed_run.SeedResult:
    profile = profiles.Profile(
        hosts=2, clients=1, split=split, nth=nth, nth_fault=fault, chaos_seconds=4, settings=SETTINGS
    )
    return seed_run.run(7, own.planned(PLAN), profile=profile)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("fault", ["crash", "pause", "partition"])
def test_one_fault_anywhere(fault: Literal["crash", "pause", "partition"], split: bool) -> None:
    places = once(0, fault, split=split)
    assert places.ok
    assert not places.cells
    assert places.passed > 100
    broken = {}
    for nth in range(1, places.passed, STRIDE):
        result = once(nth, fault, split=split)
        assert sum(result.cells.values()) == 1
        if not result.ok:
            broken[nth] = result.failures[0]
    assert broken == {}
