"""The test of the tester: every guard, switched off, breaks what it is there for. Recorded seeds that show it."""

from __future__ import annotations

import pytest

from worldline.sim import ablations, run

# The first seeds that catch a guard's absence, with one more in case the code moves on.
CATCHING: dict[str, int] = dict.fromkeys(ablations.GUARDS, 40)


@pytest.mark.parametrize("guard", list(ablations.GUARDS))
def test_a_missing_guard_is_noticed(guard: str) -> None:
    for seed in range(CATCHING[guard]):
        result = run.run(seed, without=guard, halt=True)
        if result.failures:
            assert result.failures[0].invariant in ablations.GUARDS[guard].breaks
            return
    pytest.fail(f"nobody misses {guard!r} in {CATCHING[guard]} seeds")
