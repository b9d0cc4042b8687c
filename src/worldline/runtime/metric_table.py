"""How metrics are declared: kind, help, labels. The core's are in `observe/metric_list.py`, those of a feature in its
folder (`Feature.measures`); a process adds them up.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

MetricKind = Literal["counter", "histogram", "gauge"]


class Metric(msgspec.Struct, frozen=True):
    """A metric as it is declared."""

    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = SECONDS
    optional: bool = False


def counter(help: str, *labels: str) -> Metric:
    return Metric("counter", help, labels)


def histogram(help: str, *labels: str, bounds: tuple[float, ...] = SECONDS) -> Metric:
    return Metric("histogram", help, labels, bounds)


def gauge(help: str, *labels: str, optional: bool = False) -> Metric:
    return Metric("gauge", help, labels, optional=optional)


class Level(msgspec.Struct, frozen=True, gc=False):
    """What a gauge is now. `labels`: their values, in the order in which the metric declares them."""

    metric: str
    value: float
    labels: tuple[str, ...]


class MetricTable(msgspec.Struct, frozen=True):
    """Metrics by name. `values`: of a metric and one of its labels, the values that are known beforehand; a feature may
    have more of them for a metric of the core.
    """

    metrics: Mapping[str, Metric] = {}
    values: Mapping[tuple[str, str], tuple[str, ...]] = {}

    def beginnings(self, name: str) -> list[tuple[str, ...]]:
        """The label values that a counter has from the beginning. None if a label's values are not known beforehand."""
        labels = self.metrics[name].labels
        # All labels or none: a product with an unknown side would show series that never occur.
        if any((name, label) not in self.values for label in labels):
            return []
        return list(itertools.product(*(self.values[name, label] for label in labels)))


def joined(tables: Iterable[MetricTable]) -> MetricTable:
    """All of them as one. No metric is declared twice."""
    metrics: dict[str, Metric] = {}
    values: dict[tuple[str, str], tuple[str, ...]] = {}
    for table in tables:
        twice = sorted(metrics.keys() & table.metrics.keys())
        assert not twice, f"declared twice: {', '.join(twice)}"
        metrics |= table.metrics
        for key, known in table.values.items():
            values[key] = (*values.get(key, ()), *known)
    return MetricTable(metrics, values)
