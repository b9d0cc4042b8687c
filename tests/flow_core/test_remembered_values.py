"""Computed values that are remembered: those of their data, at the same cost, and evaluated anew where more counts."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.flow_core.documents import HALT, field, first, get, lit, loaded, op, put, unchecked
from worldline.base import limits
from worldline.flow_core import compiled_document, computed, core, faults, flow_records, jobs, js_values
from worldline.flow_core.expressions.scope import EvalScope

CORE = core.Core()
CONTEXT = flow_records.JobContext(now=1_000, random_seed="i")
FIELDS = {"note": field("string"), "list": field("array", [])}
COMPUTED = {
    "computed.null": {"deps": ["note"], "expr": op("eq", get("note"), lit(None))},
    "computed.many": {"deps": ["list"], "expr": op("len", get("list"))},
    "computed.both": {"deps": ["computed.many", "count"], "expr": op("add", get("computed.many"), get("count"))},
}


def domain() -> compiled_document.Compiled:
    return loaded({"go": put("count", op("add", get("count"), lit(1)))}, FIELDS, computed=COMPUTED)


def test_they_are_those_of_the_data() -> None:
    kept, shared = domain(), [1, 2]
    every: list[dict[str, Any]] = [
        {"count": 1, "list": shared},
        {"count": 1, "list": shared, "note": None},
        {"count": 1, "list": shared},
        {"count": 2, "list": shared},
        {"count": 2, "list": [1, 2]},
        {"count": 2, "list": [3]},
        {"list": [3]},
        {"count": 1, "list": shared, "note": "x"},
        {"count": 1, "list": shared},
    ]
    for data in every:
        for _ in range(2):
            before = replace(first(kept), data=data)
            found, alone = (CORE.apply(each, before, [], CONTEXT) for each in (kept, domain()))
            assert found == alone, data


@pytest.mark.parametrize("path", ["meta.version", "meta.timestamp", "input", "input.x", "system.status"])
def test_what_depends_on_more_is_evaluated_anew(path: str) -> None:
    document = unchecked({"go": HALT}, computed={"computed.x": {"deps": [], "expr": get(path)}})
    before = flow_records.Snapshot(
        {"count": 0},
        {},
        flow_records.System(),
        flow_records.Meta(version=1, timestamp=1, random_seed="", schema_hash=""),
    )
    after = flow_records.Snapshot(
        {"count": 0},
        {},
        flow_records.System(status="error"),
        flow_records.Meta(version=2, timestamp=2, random_seed="", schema_hash=""),
        {"x": 1},
    )
    found = [CORE.apply(document, each, [], CONTEXT).computed["computed.x"] for each in (before, after)]
    assert found[0] != found[1]


def counted(fields: tuple[str, ...]) -> tuple[computed.Evaluation, list[Any]]:
    """Computed values of a field, and what they were evaluated of."""
    seen: list[Any] = []

    def run(scope: EvalScope) -> Any:
        seen.append(scope.data["count"])
        scope.meter.spend(10)
        return scope.data["count"]

    return computed.Evaluation((("computed.x", run),), fields), seen


def head(data: dict[str, Any]) -> flow_records.Snapshot:
    return flow_records.Snapshot(
        data, {}, flow_records.System(), flow_records.Meta(version=1, timestamp=1, random_seed="", schema_hash="")
    )


def test_they_are_evaluated_once_and_cost_the_same_each_time() -> None:
    evaluation, seen = counted(("count",))
    works: list[int] = []
    for number in range(3):
        meter = js_values.EvaluationMeter()
        data = {"count": 5, "$host": {"number": number}}
        assert evaluation.run(head(data), data, js_values.MISSING, meter) == {"computed.x": 5}
        works.append(meter.work)
    assert (seen, works) == ([5], [11, 11, 11])


def test_they_fail_as_others_do_where_nothing_is_left_to_spend() -> None:
    evaluation, seen = counted(("count",))
    data = {"count": 5}
    evaluation.run(head(data), data, js_values.MISSING, js_values.EvaluationMeter())
    meter = js_values.EvaluationMeter()
    meter.spend(limits.FLOW_WORK_MAX - 10)
    with pytest.raises(computed.ComputedFailed, match=r"computed\.x: more than") as failed:
        evaluation.run(head(data), data, js_values.MISSING, meter)
    assert (failed.value.fault.code, seen) == (faults.LIMIT_EXCEEDED, [5, 5])


def test_a_host_that_writes_its_own_does_not_evaluate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five versions of a snapshot, of which two change data: the first evaluation and one for each of them."""
    evaluated: list[dict[str, Any]] = []
    real = computed.Evaluation._evaluated

    def counting(
        self: computed.Evaluation, snapshot: flow_records.Snapshot, meter: js_values.EvaluationMeter
    ) -> dict[str, Any]:
        evaluated.append(snapshot.data)
        return real(self, snapshot, meter)

    monkeypatch.setattr(computed.Evaluation, "_evaluated", counting)
    document = domain()
    running = jobs.DomainRuntime(document, core.Core(trace=False))
    start = CORE.apply(document, first(document, {"count": 1}), [], CONTEXT)
    job = jobs.StartIntent(flow_records.Intent("go", "i-1"))
    after = jobs.run(job, start, running, CONTEXT, jobs.unheard).head
    assert (after.computed["computed.both"], after.meta.version) == (2, start.meta.version + 2)
    assert len(evaluated) == 2


@pytest.mark.parametrize("constant", [["a"], {"a": 1}, 7])
def test_a_caller_that_changes_what_it_was_given_changes_nothing_else(constant: Any) -> None:
    """Core's snapshots reach callers: by a preview, by the state of a cell that there is not yet, by a host."""
    document = loaded({"go": HALT}, computed={"computed.x": {"deps": [], "expr": lit(constant)}})
    for _ in range(3):
        found = core.created(document, {}, CONTEXT).computed
        assert found == {"computed.x": constant}
        if found["computed.x"] != 7:
            found["computed.x"].clear()
        found["computed.x"] = "changed"
