"""Metrics for Prometheus: a meter's counts, offered over HTTP. Needs the extra `worldline[metrics]`.

The counts are read at each scrape, in the server's thread; nothing here runs on the hot path.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from wsgiref.simple_server import WSGIServer

import prometheus_client
from prometheus_client import core, registry

from worldline.base import errors
from worldline.observe import measures
from worldline.runtime.metric_table import Metric

LOCAL = "127.0.0.1"


class MeterCollector(registry.Collector):
    """What Prometheus reads of a meter."""

    def __init__(self, meter: measures.Meter) -> None:
        self._meter = meter

    def collect(self) -> Iterator[core.Metric]:
        meter = self._meter
        # Copies: this runs in the server's thread, while the event loop adds series to the dictionaries.
        counters = dict(meter.counters)
        for name, count in meter.failures().items():
            counters["worldline_sink_errors_total", (name,)] = count
        histograms = dict(meter.histograms)
        gauges = dict(meter.gauges)
        for name, level in meter.levels().items():
            gauges[name, ()] = level
        for name, metric in meter.table.metrics.items():
            match metric.kind:
                case "counter":
                    yield _counter(name, metric, counters, meter.table.beginnings(name))
                case "histogram":
                    yield _histogram(name, metric, histograms)
                case "gauge":
                    yield _gauge(name, metric, gauges)


def _gauge(name: str, metric: Metric, gauges: dict[measures.Series, float]) -> core.GaugeMetricFamily:
    family = core.GaugeMetricFamily(name, metric.help, labels=metric.labels)
    found = [(labels, value) for (of, labels), value in gauges.items() if of == name]
    # A gauge that vanishes looks like a process that is gone.
    if not found and not metric.labels and not metric.optional:
        found = [((), 0)]
    for labels, value in found:
        family.add_metric(labels, value)
    return family


def _counter(
    name: str, metric: Metric, counters: dict[measures.Series, float], beginnings: list[tuple[str, ...]]
) -> core.CounterMetricFamily:
    family = core.CounterMetricFamily(name.removesuffix("_total"), metric.help, labels=metric.labels)
    # From the beginning, so that an alarm on its rate has something to start from.
    found: dict[tuple[str, ...], float] = dict.fromkeys(beginnings, 0)
    found |= {labels: value for (of, labels), value in counters.items() if of == name}
    for labels, value in found.items():
        family.add_metric(labels, value)
    return family


def _histogram(
    name: str, metric: Metric, histograms: dict[measures.Series, measures.Histogram]
) -> core.HistogramMetricFamily:
    family = core.HistogramMetricFamily(name, metric.help, labels=metric.labels)
    for (of, labels), histogram in histograms.items():
        if of == name:
            buckets: list[tuple[str, float]] = []
            sum_of_all, below = histogram.total, 0
            for bound, count in zip([*histogram.bounds, float("inf")], list(histogram.counts), strict=True):
                below += count  # Prometheus wants how many are at or below each bound
                buckets.append((_bound(bound), below))
            family.add_metric(labels, buckets, sum_of_all)
    return family


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else repr(bound)


class Server:
    """Serves one meter until it is closed."""

    def __init__(self, server: WSGIServer, thread: threading.Thread) -> None:
        self._server = server
        self._thread = thread

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    def close(self) -> None:
        self._server.shutdown()  # first: closing the socket under a running server raises in its thread
        self._server.server_close()
        self._thread.join()


def serve_metrics(meter: measures.Meter, address: str) -> Server:
    """Offer a meter at `HOST:PORT`, `:PORT` or `PORT`; without a host only to this machine. Port 0 picks a free one."""
    host, port = parse(address)
    # Its own registry: the library's global one has the metrics of everything else that the user's program loads.
    found = registry.CollectorRegistry()
    found.register(MeterCollector(meter))
    try:
        server, thread = prometheus_client.start_http_server(port, host, found)
    except OSError as error:
        raise errors.BadInput(f"metrics cannot be offered at {address}: {error.strerror or error}") from error
    return Server(server, thread)


def parse(address: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, where the host may be left out or stand in brackets."""
    host, _, port = address.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise errors.BadInput(f"metrics are offered at HOST:PORT, not at {address!r}")
    # Without a host only this machine can read them: metrics name universes and effects.
    return host.removeprefix("[").removesuffix("]") or LOCAL, int(port)
