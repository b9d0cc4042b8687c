"""The alerts for Prometheus and the dashboard for Grafana name metrics, labels and values that there are."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import parser

import worldline as wl
from tests import aio
from tests.observe import promql, rule_file
from worldline.model.settings import JanitorSettings, Settings

ROOT = Path(__file__).parents[2]
RULES = rule_file.read((ROOT / "deploy" / "prometheus" / "worldline.rules.yaml").read_text())
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "worldline.json").read_text())
ALERTS: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"]]
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
TARGETS: list[tuple[str, str, str]] = [
    (f"{panel['id']} {target['refId']}", target["expr"], target["legendFormat"])
    for panel in PANELS
    for target in panel.get("targets", [])
]
RUNBOOK = "docs/operations.md"
BUILT_IN = ("__rate_interval",)
SEVERITIES = ("critical", "warning", "info")
_DURATION = re.compile(r"\d+[smhd]")
_VARIABLE = re.compile(r"\$\{?(\w+)")


def anchors(page: Path) -> list[str]:
    """The headings of a page, as links name them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def filled(expression: str) -> str:
    """An expression with a value for each variable of the dashboard."""
    return expression.replace("$__rate_interval", "5m")


# --- Alerts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alert", ALERTS, ids=[each["alert"] for each in ALERTS])
def test_an_alert_names_what_there_is(alert: dict[str, Any]) -> None:
    found = promql.read(alert["expr"])
    assert set(alert) <= {"alert", "expr", "for", "labels", "annotations"}
    assert "for" not in alert or _DURATION.fullmatch(alert["for"])
    assert alert["labels"]["severity"] in SEVERITIES
    assert set(alert["annotations"]) == {"summary", "runbook"}
    page, _, anchor = alert["annotations"]["runbook"].partition("#")
    assert page == RUNBOOK
    assert anchor in anchors(ROOT / RUNBOOK), "a section of the runbook"
    named = re.findall(r"\$labels\.(\w+)", alert["annotations"]["summary"])
    known = (
        found.kept if found.kept is not None else [each for name in found.metrics for each in promql.labels_of(name)]
    )
    if re.match(r"(sum|max|min)\(", alert["expr"]):
        known = []  # an aggregation that keeps no label
    assert [each for each in named if each not in known] == [], "labels that the expression does not have"


def test_alerts_have_names_of_their_own() -> None:
    names = [each["alert"] for each in ALERTS]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert all(re.fullmatch(r"Worldline[A-Z]\w+", name) for name in names)
    assert len({group["name"] for group in RULES["groups"]}) == len(RULES["groups"])


def test_what_must_wake_a_person_has_an_alert() -> None:
    named = {name for alert in ALERTS for name in promql.read(alert["expr"]).metrics}
    assert named >= {
        "worldline_backlog_unhosted_worlds",
        "worldline_backlog_unread_age_seconds",
        "worldline_dead_letters_total",
        "worldline_backlog_open",
        "worldline_runs_blocked_total",
        "worldline_proofs_diverged_total",
        "worldline_reaped_workers_total",
        "worldline_self_fences_total",
        "worldline_store_errors_total",
        "worldline_store_commit_seconds_bucket",
        "worldline_process_start_timestamp_seconds",
        "worldline_disk_free_bytes",
        "worldline_backlog_measured_timestamp_seconds",
    }


# --- The dashboard -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("expression", "legend"), [each[1:] for each in TARGETS], ids=[each[0] for each in TARGETS])
def test_a_panel_names_what_there_is(expression: str, legend: str) -> None:
    found = promql.read(filled(expression))
    variables = [each["name"] for each in DASHBOARD["templating"]["list"]]
    assert [each for each in _VARIABLE.findall(expression) if each not in (*variables, *BUILT_IN)] == []
    known = found.kept if found.kept is not None else list(promql.TARGET_LABELS)
    assert [each for each in re.findall(r"{{(\w+)}}", legend) if each not in known] == []


def test_panels_have_ids_and_places_of_their_own() -> None:
    ids = [panel["id"] for panel in PANELS]
    assert len(set(ids)) == len(ids) > 30
    covered: dict[tuple[int, int], int] = {}
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert covered.setdefault((x, y), panel["id"]) == panel["id"], f"{panel['title']} covers another"
        refs = [target["refId"] for target in panel.get("targets", [])]
        assert len(set(refs)) == len(refs)


def test_the_data_source_is_a_variable_that_every_panel_uses() -> None:
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    used = [panel["datasource"] for panel in PANELS if panel["type"] != "row"]
    used += [target["datasource"] for panel in PANELS for target in panel.get("targets", [])]
    asking = [each for each in variables.values() if each["type"] == "query"]
    used += [each["datasource"] for each in asking]
    assert {each["uid"] for each in used} == {"${datasource}"}
    for each in asking:
        match = re.fullmatch(r"label_values\((\w+), (\w+)\)", each["query"]["query"])
        assert match is not None
        assert match[2] in promql.labels_of(match[1])


def test_every_part_of_the_system_is_on_it() -> None:
    rows = " ".join(panel["title"].lower() for panel in PANELS if panel["type"] == "row")
    for part in ("throughput", "latency", "backlog", "failures", "leases and failovers", "store", "janitor"):
        assert part in rows


# --- The checks themselves ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("sum(rate(worldline_nothing_total[5m]))", "no metric"),
        ('sum(rate(worldline_inputs_total{via="inbox"}[5m]))', "no label via"),
        ('sum(rate(worldline_effect_attempts_total{outcome="park"}[5m]))', "never 'park'"),
        ('sum(rate(worldline_effect_attempts_total{outcome=~"ok|park"}[5m]))', "never 'park'"),
        ("sum by (why) (rate(worldline_steps_total[5m]))", "label why"),
        ("sum(rate(worldline_steps_total))", "takes a range"),
        ("sum(rate(worldline_steps_total[5m])", "missing"),
        ("sum(rate(worldline_steps_total[5m)])", "closes nothing"),
        ("sum(ratio(worldline_steps_total[5m]))", "no function"),
        ("rate(worldline_cycle_seconds[5m])", "_bucket, _sum or _count"),
        ("worldline_steps_total_bucket > 1", "no metric"),
        ("sum(up) > 1", "no function, operator or metric"),
        ("time() > 1", "no metric"),
        ("worldline_worlds_held > 1 $ 2", "cannot read"),
    ],
)
def test_what_is_wrong_is_refused(expression: str, why: str) -> None:
    with pytest.raises(promql.BadExpression, match=re.escape(why)):
        promql.read(expression)


@pytest.mark.parametrize("text", ["a: 1\na: 2", "a:\n  - b: 1\n c: 2", "a: [1]", 'a: "b', "a: b: c", "a: |\n  b", "A"])
def test_rules_in_another_form_are_refused(text: str) -> None:
    with pytest.raises(AssertionError):
        rule_file.read(text)


# --- What a process offers ---------------------------------------------------------------------------------------


def scrape(port: int) -> dict[str, list[dict[str, str]]]:
    """The labels of every sample, by the name of the sample, and an empty list for metrics without any."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found: dict[str, list[dict[str, str]]] = {}
    for family in parser.text_string_to_metric_families(text):
        found.setdefault(family.name + ("_total" if family.type == "counter" else ""), [])
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


async def test_a_real_process_offers_all_that_is_named(tmp_path: Path) -> None:
    app = wl.Program("p")

    @app.effect
    async def touch() -> bytes:
        return b"large" * 5_000

    @app.workflow
    async def go() -> int:
        await wl.sleep(0.01)
        return len(await touch())

    settings = Settings(janitor=JanitorSettings(turn_ms=20, round_ms=100, backlog_ms=100))
    place, kept = str(tmp_path / "store"), str(tmp_path / "objects")
    async with wl.open(place, host=app, metrics="127.0.0.1:0", settings=settings, objects=kept) as universe:
        world = await universe.ensure("w", app)
        assert await world.run(go(), timeout=30) == 25_000
        port = universe.metrics_port
        assert port is not None

        async def measured() -> bool:
            found = await asyncio.to_thread(scrape, port)
            return len(found["worldline_backlog_measured_timestamp_seconds"]) == 3

        await aio.until(measured)
        found = await asyncio.to_thread(scrape, port)
    named = {name for alert in ALERTS for name in promql.read(alert["expr"]).metrics}
    named |= {name for _, expression, _ in TARGETS for name in promql.read(filled(expression)).metrics}
    assert [name for name in named if promql.split(name)[0] not in found] == []
    for name, samples in found.items():
        assert promql.split(name)[0] in promql.METRICS.metrics
        for labels in samples:
            assert set(labels) == set(promql.labels_of(name)) - set(promql.TARGET_LABELS), name
            for label, value in labels.items():
                assert value in promql.METRICS.values.get((promql.split(name)[0], label), (value,)), f"{name}: {label}"
    assert {"universe": "default", "status": "active"} in found["worldline_backlog_worlds"]
    assert {"engine": "lmdb"} in found["worldline_store_read_seconds_count"]
    assert {"engine": "folder", "call": "put"} in found["worldline_object_bytes_total"]
    assert {"kind": "journal"} in found["worldline_store_written_bytes_total"]
    for name in ("worldline_disk_free_bytes", "worldline_process_start_timestamp_seconds", "worldline_moves_total"):
        assert found[name], f"{name} is there from the beginning"
