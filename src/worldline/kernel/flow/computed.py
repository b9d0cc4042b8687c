"""Computed values: the order they are evaluated in, and evaluating them.

Edges are the declared dependencies that are computed themselves; the order is Kahn's, first declared first. What is
missing is null. One that cannot be evaluated leaves all of them empty: a reader must not take old ones for new.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worldline.kernel.flow import faults, schema, snapshots, values
from worldline.kernel.flow.expressions.scope import Run, Scope

Evaluation = tuple[tuple[str, Run], ...]


def ordered(fields: Mapping[str, schema.ComputedField]) -> list[str]:
    """The keys, each behind what it depends on. Raises a fault where they depend on each other."""
    waiting = {name: [dep for dep in dict.fromkeys(each.deps) if dep in fields] for name, each in fields.items()}
    dependents: dict[str, list[str]] = {}
    for name, deps in waiting.items():
        for dep in deps:
            dependents.setdefault(dep, []).append(name)
    missing = {name: len(deps) for name, deps in waiting.items()}
    ready = [name for name, count in missing.items() if not count]
    for name in ready:
        for other in dependents.get(name, ()):
            missing[other] -= 1
            if not missing[other]:
                ready.append(other)
    if len(ready) < len(fields):
        circle = [name for name, count in missing.items() if count]
        raise faults.Fault(faults.CYCLIC_DEPENDENCY, f"computed values depend on each other: {', '.join(circle)}")
    return ready


class Failed(Exception):
    """A computed value could not be evaluated."""

    def __init__(self, key: str, fault: faults.Fault) -> None:
        super().__init__(f"{key}: {fault.message}")
        self.key = key
        self.fault = fault


def evaluated(evaluation: Evaluation, snapshot: snapshots.Snapshot, meter: values.Meter) -> dict[str, Any]:
    """All of them. Raises `Failed`."""
    scope = Scope(snapshot)
    scope.begin_computed(meter)
    found = scope.computed
    for key, run in evaluation:
        try:
            value = run(scope)
            meter.spend(1)
            found[key] = None if value is values.MISSING else values.checked(value, meter, key)
        except faults.Fault as fault:
            raise Failed(key, fault) from None
    return found
