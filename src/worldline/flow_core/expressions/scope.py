"""What an expression reads: one snapshot, one intent, and the element that an enclosing loop is at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from worldline.flow_core import flow_records, js_values


class EvalScope:
    """The values that paths are looked up in. A flow changes `data` while it runs; `computed` stays as it was."""

    __slots__ = (
        "_uuids",
        "action",
        "array",
        "computed",
        "data",
        "index",
        "input",
        "intent_id",
        "item",
        "meta",
        "meter",
        "system",
        "system_view",
    )

    def __init__(self, snapshot: flow_records.Snapshot, *, intent_id: str = "", action: str = "") -> None:
        self.data: dict[str, Any] = snapshot.data
        self.computed: dict[str, Any] = snapshot.computed
        self.input: Any = snapshot.input
        self.system: flow_records.System = snapshot.system
        self.meta: flow_records.Meta = snapshot.meta
        self.intent_id: str = intent_id
        self.action: str = action
        self.item: Any = js_values.MISSING
        self.index: Any = js_values.MISSING
        self.array: Any = js_values.MISSING
        self.meter = js_values.EvaluationMeter()
        self.system_view: dict[str, Any] | None = None
        self._uuids = 0

    def begin_computed(self, meter: js_values.EvaluationMeter) -> None:
        """The computed values are to be filled in one by one, at the cost of a call that has begun."""
        self.computed = {}
        self.meter = meter

    def begin_flow(self, action_input: Any, meter: js_values.EvaluationMeter) -> None:
        """Set the input of the intent that is computed, and the meter of the whole call."""
        self.input = action_input
        self.meter = meter

    def enter(self, item: Any, index: Any, array: Any) -> None:
        """Bind what a loop is at; called again with what was bound before when it ends."""
        self.item, self.index, self.array = item, index, array

    def system_data(self) -> dict[str, Any]:
        """`system` as plain values, the same ones for the same snapshot."""
        # Made when it is first read, because few expressions do.
        if self.system_view is None:
            self.system_view = flow_records.plain(self.system)
        return self.system_view

    def next_uuid(self) -> int:
        # Counted anew in each compute, so a flow that is run again draws the same.
        self._uuids += 1
        return self._uuids - 1

    def write(self, data: dict[str, Any]) -> None:
        """Set the data that a flow has patched."""
        self.data = data


Run = Callable[[EvalScope], Any]
