"""What a cluster promises at a nominal load, and whether it was kept.

The load is offered in rounds, and each is measured by itself. A target is kept if the median round keeps it, and missed
if no round does. In between it is the noise of a machine that others use.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import msgspec

ROUNDS = 3
# 95th percentiles, in milliseconds, by the names of `cluster`'s figures.
P95_MS = {
    "heartbeat_p95_ms": 50.0,  # a lease is renewed by the heartbeat of its worker
    "inbox_to_journal_p95_ms": 100.0,
    "effect_p95_ms": 200.0,  # from the step that asks until the receipt is journaled
}


class TargetCheck(msgspec.Struct, frozen=True):
    """`measured_ms`: of the median round; `rounds_ms`: of each."""

    name: str
    target_ms: float
    measured_ms: float
    rounds_ms: list[float]
    verdict: str

    @property
    def line(self) -> str:
        each = ", ".join(f"{value:g}" for value in self.rounds_ms)
        measured = f"measured {self.measured_ms:g} ms ({each})"
        return f"{self.verdict:>12}  {self.name}: target {self.target_ms:g} ms, {measured}"


def judge(rounds: Sequence[Mapping[str, float]]) -> list[TargetCheck]:
    """Return which targets were kept. `rounds`: the figures of each."""
    return [_judge(name, target_ms, [each[name] for each in rounds]) for name, target_ms in P95_MS.items()]


def _judge(name: str, target_ms: float, measured: list[float]) -> TargetCheck:
    middle = statistics.median_high(measured)  # of an even number the worse one: a target is not kept by averaging
    # Between the two, the machine may be to blame: one good round shows that the code can keep the target.
    verdict = "kept" if middle < target_ms else "within noise" if min(measured) < target_ms else "missed"
    return TargetCheck(name, target_ms, middle, measured, verdict)


def is_missed(checks: Sequence[Mapping[str, object]]) -> bool:
    """Whether one of these was missed, as figures have them."""
    return any(each["verdict"] == "missed" for each in checks)
