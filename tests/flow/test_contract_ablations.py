"""Every guard of jobs and host, switched off, is missed by a test of the suite."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.flow import test_contract, test_contract_effects, test_contract_order, test_host
from tests.flow.conftest import Desks
from worldline.flow.flow_host import Host
from worldline.flow_core import jobs

Scenario = Callable[[Desks], Awaitable[None]]


def act_first(host: Host, key: str, job: jobs.Job, outcome: jobs.JobOutcome) -> None:
    """Effects are dispatched before the head is set."""
    host._act(key, outcome)
    host._keys[key].advance(outcome.head)


GUARDS: dict[str, tuple[Any, str, Any, Scenario]] = {
    "FULFILL-0": (jobs, "is_pending", lambda *_: True, test_contract_effects.test_fulfill_twice_the_first_counts),
    "clear on error": (
        jobs,
        "must_clear",
        lambda failure: failure is None,
        test_contract_order.test_ord_007_a_timeout_clears_and_goes_on,
    ),
    "tombstone": (
        jobs,
        "refused_again",
        lambda *_: None,
        test_contract_effects.test_err_fe_4_a_failed_id_is_never_performed_again,
    ),
    "interlock": (
        Host,
        "_settle",
        act_first,
        test_contract.test_interlock_001b_a_handler_sees_what_its_compute_patched,
    ),
    "re-check": (
        Host,
        "_rechecked",
        lambda *_: False,
        test_host.test_run_004_a_job_that_comes_as_the_runner_ends_is_run_by_it,
    ),
    "remembered kick": (
        Host,
        "_remember",
        lambda *_: None,
        test_host.test_live_004_a_kick_that_a_runner_blocks_is_remembered,
    ),
    "ordering buffer": (
        jobs,
        "is_next",
        lambda *_: True,
        test_contract_order.test_ord_parallel_results_are_applied_in_cores_order,
    ),
    "seed per job": (
        jobs,
        "seed",
        lambda _, head: head.meta.random_seed,
        test_contract.test_ctx_seed_of_queued_intents_is_their_own,
    ),
}


@pytest.mark.parametrize("name", list(GUARDS))
async def test_a_guard_that_is_off_is_missed(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place, attribute, without, scenario = GUARDS[name]
    desks = Desks("standalone", tmp_path)
    await scenario(desks)
    monkeypatch.setattr(place, attribute, without)
    with pytest.raises(AssertionError):
        await scenario(desks)
    await desks.aclose()
