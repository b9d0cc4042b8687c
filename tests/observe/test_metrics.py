"""Metrics as Prometheus sees them, and the page that explains them."""

from __future__ import annotations

import asyncio
import re
import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import parser

import worldline as wl
from worldline.api import wiring
from worldline.host.feature_list import FEATURES
from worldline.model.settings import JanitorSettings, Settings
from worldline.observe import measures, metric_list, prometheus
from worldline.runtime import facts
from worldline.runtime.feature import Feature
from worldline.runtime.metric_table import Level, MetricTable, gauge

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def scrape(port: int) -> dict[str, float]:
    """Every sample, by name and labels, as a scraper reads them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        sample.name + "".join(f"|{name}={value}" for name, value in sorted(sample.labels.items())): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_a_process_offers_what_it_does(tmp_path: Path) -> None:
    app = wl.Program("p")

    @app.effect
    async def touch() -> int:
        return 1

    @app.workflow
    async def go() -> int:
        return await touch()

    async with wl.open(str(tmp_path), host=app, metrics="127.0.0.1:0") as universe:
        world = await universe.ensure("w", app)
        assert await world.run(go(), timeout=30) == 1
        head = await world.head()
        port = universe.metrics_port
        assert port is not None
        found = await asyncio.to_thread(scrape, port)
    assert found["worldline_steps_total"] == head.step
    assert found["worldline_inputs_total|kind=control"] == 1
    assert found["worldline_effects_opened_total|effect=touch"] == 1
    assert found["worldline_effect_attempts_total|effect=touch|outcome=ok"] == 1
    assert found["worldline_effect_seconds_count|effect=touch"] == 1
    assert found["worldline_effect_seconds_bucket|effect=touch|le=+Inf"] == 1
    assert found["worldline_worlds_held"] == 1
    assert found["worldline_self_fences_total"] == 0, "there from the beginning, so that its rate can be watched"
    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(scrape, port)


async def test_without_being_asked_nothing_is_offered(tmp_path: Path) -> None:
    async with wl.open(str(tmp_path), create=True) as universe:
        assert not universe._connection.telemetry.on
        assert universe.metrics_port is None


async def test_what_is_not_known_is_not_offered() -> None:
    """A store without a folder has no disk of its own: 0 free bytes would be an alarm."""
    async with wl.open("memory://", create=True, metrics="127.0.0.1:0") as universe:
        assert universe.metrics_port is not None
        found = await asyncio.to_thread(scrape, universe.metrics_port)
    assert not [name for name in found if name.startswith(("worldline_disk", "worldline_backlog"))]
    assert found["worldline_worlds_held"] == 0, "what is known to be none is"
    assert found["worldline_process_start_timestamp_seconds"] > 1_700_000_000


@pytest.mark.parametrize(
    ("backlog_ms", "sinks", "counted"),
    [
        (60_000, wl.ops.Sinks(metrics=lambda _: None), True),
        (0, wl.ops.Sinks(metrics=lambda _: None), False),
        (60_000, wl.ops.Sinks(log=lambda _: None), False),
        (60_000, None, False),
    ],
)
async def test_the_backlog_is_counted_where_metrics_are_wanted(
    backlog_ms: int, sinks: wl.ops.Sinks | None, counted: bool
) -> None:
    settings = Settings(janitor=JanitorSettings(backlog_ms=backlog_ms))
    async with wl.open("memory://", host=wl.Program("p"), settings=settings, sinks=sinks) as universe:
        host = wiring.host_of(universe._connection)
        assert ("backlog" in [role.name for role in host.dump().roles]) == counted


def test_a_sink_is_given_gauges_too() -> None:
    given: list[wl.ops.Measure] = []
    meter = measures.Meter(given.append)
    meter.tell(facts.DueCounted("u", 5_000_000, {"timer": 3}, {"timer": 2_000_000}))
    assert [(each.name, each.kind, each.value, each.labels) for each in given] == [
        ("worldline_backlog_overdue", "gauge", 3, {"universe": "u", "kind": "timer"}),
        ("worldline_backlog_overdue_age_seconds", "gauge", 2, {"universe": "u", "kind": "timer"}),
        ("worldline_backlog_measured_timestamp_seconds", "gauge", 5, {"universe": "u", "part": "due"}),
    ]


def test_values_of_labels_are_of_labels_that_there_are() -> None:
    table = metric_list.table(FEATURES)
    for name, label in table.values:
        assert label in table.metrics[name].labels
    assert table.beginnings("worldline_steps_total") == [()]
    assert table.beginnings("worldline_effects_opened_total") == [], "effects have any names"
    assert ("fenced",) in table.beginnings("worldline_worlds_dropped_total")


def test_metrics_of_features_are_added_to_those_of_the_core() -> None:
    more = MetricTable(
        {"worldline_rocks": gauge("Rocks.", "size")}, {("worldline_inputs_refused_total", "why"): ("rocks",)}
    )
    table = metric_list.table([Feature(name="a"), Feature(name="b", measures=more)])
    assert table.metrics.keys() - metric_list.METRICS.keys() == {"worldline_rocks"}
    refusals = table.beginnings("worldline_inputs_refused_total")
    assert refusals == [("inbox",), ("effects",), ("world",), ("process",), ("rocks",)]
    given: list[wl.ops.Measure] = []
    measures.Meter(given.append, table=table).tell(facts.LevelsMeasured([Level("worldline_rocks", 3, ("big",))]))
    assert given == [measures.Measure("worldline_rocks", "gauge", 3, {"size": "big"})]
    with pytest.raises(AssertionError, match="declared twice: worldline_rocks"):
        metric_list.table([Feature(name="b", measures=more), Feature(name="c", measures=more)])


async def test_a_process_offers_metrics_of_features(tmp_path: Path) -> None:
    """Also before anything was refused: a rise from nothing is seen as one."""
    async with wl.open(str(tmp_path), create=True, metrics="127.0.0.1:0") as universe:
        assert universe.metrics_port is not None
        found = await asyncio.to_thread(scrape, universe.metrics_port)
    assert found["worldline_inputs_refused_total|why=quota"] == 0


async def test_open_takes_an_address_and_says_if_it_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(wl.BadInput, match="cannot be offered"):
            async with wl.open(str(tmp_path), create=True, metrics=address):
                pass


def test_buckets_are_cumulative_and_sinks_that_raise_are_counted() -> None:
    meter = measures.Meter()
    for seconds in (0.0005, 0.001, 0.0011, 7, 1_000):
        meter.observe("worldline_cycle_seconds", seconds)
    meter.failures = lambda: {"log": 3}
    server = prometheus.serve_metrics(meter, "127.0.0.1:0")
    try:
        found = scrape(server.port)
    finally:
        server.close()
    buckets = {key: value for key, value in found.items() if key.startswith("worldline_cycle_seconds_bucket")}
    assert list(buckets.values()) == sorted(buckets.values())
    assert buckets["worldline_cycle_seconds_bucket|le=0.001"] == 2
    assert buckets["worldline_cycle_seconds_bucket|le=0.0025"] == 3
    assert buckets["worldline_cycle_seconds_bucket|le=10.0"] == 4
    assert buckets["worldline_cycle_seconds_bucket|le=+Inf"] == found["worldline_cycle_seconds_count"] == 5
    assert found["worldline_cycle_seconds_sum"] == pytest.approx(1007.0026)
    assert found["worldline_sink_errors_total|sink=log"] == 3


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:9464", ("127.0.0.1", 9464)),
        (":9464", ("127.0.0.1", 9464)),
        ("9464", ("127.0.0.1", 9464)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
        ("[::1]:9464", ("::1", 9464)),
        ("metrics.example:80", ("metrics.example", 80)),
    ],
)
def test_addresses(address: str, expected: tuple[str, int]) -> None:
    assert prometheus.parse(address) == expected


@pytest.mark.parametrize("address", ["", "localhost", "host:port", "host:", ":-1", "h:65536", "h:²"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(wl.BadInput, match="HOST:PORT"):
        prometheus.parse(address)


def test_the_page_explains_every_metric_and_no_other() -> None:
    listed = re.findall(r"^\| `(worldline_\w+)`", PAGE.read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(metric_list.table(FEATURES).metrics)


def test_names_follow_the_custom() -> None:
    for name, metric in metric_list.table(FEATURES).metrics.items():
        assert name.endswith("_total") == (metric.kind == "counter"), name
        assert metric.help.endswith("."), name
