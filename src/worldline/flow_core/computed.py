"""Computed values: the order they are evaluated in, and evaluating them.

Edges are the declared dependencies that are computed themselves; the order is Kahn's, first declared first. What is
missing is null. One that cannot be evaluated leaves all of them empty: a reader must not take old ones for new.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import is_
from typing import Any

from msgspec.structs import replace

from worldline.flow_core import document_schema, faults, flow_records, js_values
from worldline.flow_core.expressions.scope import EvalScope, Run

_CONTAINERS = (dict, list)


def ordered(fields: Mapping[str, document_schema.ComputedField]) -> list[str]:
    """Return the keys, each behind what it depends on. Raises a fault where they depend on each other."""
    waiting = {name: [dep for dep in dict.fromkeys(each.deps) if dep in fields] for name, each in fields.items()}
    dependents: dict[str, list[str]] = {}
    for name, deps in waiting.items():
        for dep in deps:
            dependents.setdefault(dep, []).append(name)
    missing = {name: len(deps) for name, deps in waiting.items()}
    ready = [name for name, count in missing.items() if not count]
    # The list grows while it is walked: it is the queue.
    for name in ready:
        for other in dependents.get(name, ()):
            missing[other] -= 1
            if not missing[other]:
                ready.append(other)
    if len(ready) < len(fields):
        circle = [name for name, count in missing.items() if count]
        raise faults.Fault(faults.CYCLIC_DEPENDENCY, f"computed values depend on each other: {', '.join(circle)}")
    return ready


class ComputedFailed(Exception):
    """A computed value could not be evaluated."""

    def __init__(self, key: str, fault: faults.Fault) -> None:
        super().__init__(f"{key}: {fault.message}")
        self.key = key
        self.fault = fault


class Evaluation:
    """The computed values of a document. `steps`: each with its key, in their order; `fields`: those of the data that
    they depend on, None if they depend on something else, too.

    The last ones are remembered, if they are scalars: a container would be that of all snapshots that have it, and
    callers get snapshots. Containers of the data are never changed in place by Core, so the same fields have the same
    computed values: most jobs of a host touch none of them.
    """

    __slots__ = ("_fields", "_last", "_steps")

    def __init__(self, steps: tuple[tuple[str, Run], ...], fields: tuple[str, ...] | None) -> None:
        self._steps = steps
        self._fields = fields
        self._last: tuple[list[Any], dict[str, Any], int] | None = None  # the fields, the values, what they cost

    def run(
        self, snapshot: flow_records.Snapshot, data: dict[str, Any], action_input: Any, meter: js_values.EvaluationMeter
    ) -> dict[str, Any]:
        """All of them, of this data and this input; the rest is the snapshot's. Raises `ComputedFailed`. Remembered
        ones cost as much as others, and fail as others do.
        """
        # They depend on the intent or the time as well, so nothing of them can be kept.
        if self._fields is None:
            return self._evaluated(replace(snapshot, data=data, input=action_input), meter)
        read = [data.get(name, js_values.MISSING) for name in self._fields]
        last = self._last
        if last is not None and meter.can_spend(last[2]) and all(map(is_, read, last[0])):
            meter.spend(last[2])
            return last[1].copy()  # the snapshot gets its own
        begun = meter.work
        found = self._evaluated(replace(snapshot, data=data, input=action_input), meter)
        if not any(type(each) in _CONTAINERS for each in found.values()):
            # The cost is kept too, so that the same document reaches the limit at the same place.
            self._last = read, found.copy(), meter.work - begun
        return found

    def _evaluated(self, snapshot: flow_records.Snapshot, meter: js_values.EvaluationMeter) -> dict[str, Any]:
        scope = EvalScope(snapshot)
        scope.begin_computed(meter)
        found = scope.computed
        for key, run in self._steps:
            try:
                value = run(scope)
                meter.spend(1)
                # A value that is missing becomes null, which JSON has.
                found[key] = None if value is js_values.MISSING else js_values.checked(value, meter, key)
            except faults.Fault as fault:
                raise ComputedFailed(key, fault) from None
        return found
