"""Counters in memory that a program reads and sets back by itself: a metrics sink without a server.

`wl.open(..., sinks=wl.ops.Sinks(metrics=counters))` with `counters = wl.ops.Counters()`. They are counted on the event
loop; `snapshot` gives a copy that does not change any more.
"""

from __future__ import annotations

import msgspec

from worldline.observe.measures import Measure
from worldline.runtime.metric_table import MetricKind

_Series = tuple[str, tuple[tuple[str, str], ...]]


class Counted(msgspec.Struct, frozen=True):
    """One metric with one set of labels. `value`: the sum of a counter, of a histogram's observations, or what a gauge
    is now; `count` and `most`: how many measurements there were, and the largest.
    """

    name: str
    kind: MetricKind
    labels: dict[str, str]
    value: float
    count: int
    most: float


class Counters:
    """A metrics sink that adds up. How many series there are is bounded by the meter that calls it."""

    def __init__(self) -> None:
        self._counted: dict[_Series, Counted] = {}

    def __call__(self, measure: Measure) -> None:
        """Take a measurement: it is called by the process that is watched."""
        # Sorted: one series, whatever order the labels come in.
        series = (measure.name, tuple(sorted(measure.labels.items())))
        known = self._counted.get(series)
        if known is None:
            first = Counted(measure.name, measure.kind, dict(measure.labels), measure.value, 1, measure.value)
            self._counted[series] = first
            return
        # A gauge says how it is now, so its values do not add up.
        value = measure.value if measure.kind == "gauge" else known.value + measure.value
        most = max(known.most, measure.value)
        self._counted[series] = msgspec.structs.replace(known, value=value, count=known.count + 1, most=most)

    def snapshot(self) -> list[Counted]:
        """Copy what was counted since the beginning or the last `reset`, by name and labels."""
        return [self._counted[series] for series in sorted(self._counted)]

    def value(self, name: str, **labels: str) -> float:
        """Add up what was counted of one metric, over all series that have these labels."""
        return sum(
            each.value for each in self._counted.values() if each.name == name and labels.items() <= each.labels.items()
        )

    def reset(self) -> list[Counted]:
        """Begin anew at nothing. Returns what there was."""
        before = self.snapshot()  # copied and emptied without an await between: no measurement is lost
        self._counted = {}
        return before
