"""The test of the tester: every guard, switched off, breaks what it is there for."""

from __future__ import annotations

import os

import pytest

from worldline.model.settings import Settings, WorkerSettings
from worldline.sim import ablations, campaign, faults, run, workloads

SEEDS = int(os.environ.get("WORLDLINE_ABLATION_SEEDS", "60"))


# What a guard is there for may be rare in a drawn seed; then the workload is one that needs it all the time.
LARGE = workloads.Plan(
    worlds=[("counter-0", "counters")],
    ops=[[workloads.Op(f"{client}-{n}", "add", "counter-0", 2) for n in range(10)] for client in range(2)],
    pause_ms=10,
)
QUICK = Settings(worker=WorkerSettings(lease_ttl_ms=1_000, heartbeat_ms=250, scan_ms=300))
SCENARIOS = {
    "hash-verify": (faults.Profile(split=True, objects=600), LARGE),
    "epoch": (faults.Profile(hosts=3, split=True, focus="step", settings=QUICK), LARGE),
}


def caught(guard: str) -> run.Result:
    profile, plan = SCENARIOS.get(guard, (None, None))
    for seed in range(SEEDS):
        result = run.run(seed, without=guard, profile=profile, plan=plan, halt=True)
        if result.failures:
            return result
    pytest.fail(f"nobody misses {guard!r} in {SEEDS} seeds")


@pytest.mark.parametrize("guard", list(ablations.GUARDS))
def test_a_missing_guard_is_noticed(guard: str) -> None:
    result = caught(guard)
    assert result.failures[0].invariant in ablations.GUARDS[guard].breaks, result.failures[0]


def test_a_failure_shrinks_to_what_it_takes() -> None:
    """Steps that do not consume break with no fault at all, and with one operation."""
    shrunk = campaign.shrink(3, without="consume")
    assert shrunk is not None
    assert shrunk.result.failures[0].invariant == "J6"
    assert campaign.named(shrunk) == [f"{len(shrunk.plan.ops)} operations"]
    assert campaign.shrink(0) is None


def test_the_scenarios_hold_with_their_guards() -> None:
    for profile, plan in SCENARIOS.values():
        for seed in range(3):
            assert run.run(seed, profile=profile, plan=plan).failures == []
