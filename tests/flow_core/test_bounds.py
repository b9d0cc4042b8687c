"""Hostile documents end in a typed error, within bounds: of depth, text, items and work."""

from __future__ import annotations

from typing import Any

import pytest

from tests.flow_core.documents import document, field, first, get, lit, loaded, op, put, seq, unchecked
from worldline.base import limits
from worldline.flow_core import core, faults, flow_records, js_values, validation

CORE = core.Core()
CONTEXT = flow_records.JobContext()
STATE = {"list": field("array", []), "text": field("string", "")}


def end(domain: Any, action: str = "go", data: Any = None) -> str:
    found = CORE.compute(domain, first(domain, data), flow_records.Intent(action, "i"), CONTEXT)
    error = found.snapshot.system.last_error
    return error.code if error else found.status


def nested(depth: int) -> dict[str, Any]:
    made = lit(1)
    for _ in range(depth):
        made = op("not", made)
    return made


@pytest.mark.parametrize("depth", [limits.FLOW_DEPTH_MAX + 1, 5_000])
def test_an_expression_that_is_too_deep_is_refused(depth: int) -> None:
    with pytest.raises(faults.SchemaRefused, match="nested deeper"):
        validation.load_unchecked(document_with(nested(depth)))


def document_with(expression: Any) -> dict[str, Any]:
    made = document({"go": put("count", lit(1))})
    return {**made, "actions": {"go": {"flow": put("count", expression)}}}


def test_the_deepest_expression_that_is_taken_runs() -> None:
    assert end(unchecked({"go": put("flag", nested(limits.FLOW_DEPTH_MAX))}, {"flag": field("boolean")})) == "complete"


def test_a_flow_that_is_too_deep_is_refused() -> None:
    flow: Any = put("count", lit(1))
    for _ in range(limits.FLOW_DEPTH_MAX + 1):
        flow = seq(flow)
    with pytest.raises(faults.SchemaRefused, match="nested deeper"):
        unchecked({"go": flow})


def test_calls_nested_too_deep_end_in_an_error() -> None:
    count = limits.FLOW_DEPTH_MAX // 2
    actions: dict[str, Any] = {f"a{at}": seq(seq(seq({"kind": "call", "flow": f"a{at + 1}"}))) for at in range(count)}
    assert end(loaded({**actions, f"a{count}": put("count", lit(1))}), "a0") == faults.LIMIT_EXCEEDED


def test_calls_that_double_end_in_an_error() -> None:
    actions: dict[str, Any] = {
        f"a{at}": seq({"kind": "call", "flow": f"a{at + 1}"}, {"kind": "call", "flow": f"a{at + 1}"})
        for at in range(30)
    }
    assert end(loaded({**actions, "a30": put("count", lit(1))}), "a0") == faults.LIMIT_EXCEEDED


@pytest.mark.parametrize(
    "double",
    [
        lambda inner: op("concat", inner, inner),
        lambda inner: {"kind": "append", "array": lit([]), "items": [inner, inner]},
        lambda inner: {
            "kind": "replace",
            "str": op("concat", inner, inner),
            "search": lit("x"),
            "replacement": lit("$'$`x"),
        },
    ],
    ids=["text", "array", "replace"],
)
def test_values_that_double_end_in_an_error(double: Any) -> None:
    computed = {"computed.v0": {"deps": [], "expr": lit("xxxxxxxxxxxxxxxx")}}
    for at in range(40):
        key = f"computed.v{at}"
        computed[f"computed.v{at + 1}"] = {"deps": [key], "expr": double(get(key))}
    assert end(loaded({"go": put("count", lit(1))}, computed=computed)) == faults.LIMIT_EXCEEDED


# The budget is small where a loop that is not charged would otherwise run for ever, instead of failing its test.


def test_an_array_that_doubles_in_one_expression_is_not_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FLOW_WORK_MAX", 5_000)
    made = lit([])
    for _ in range(14):
        made = {"kind": "flat", "array": {"kind": "map", "array": lit([1, 2]), "mapper": made}}
    assert end(unchecked({"go": put("list", made)}, STATE)) == faults.LIMIT_EXCEEDED


@pytest.mark.parametrize(("kind", "many"), [("map", 12), ("filter", 12), ("find", 100), ("every", 12), ("some", 12)])
def test_loops_in_loops_end_in_an_error(kind: str, many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FLOW_WORK_MAX", 5_000)
    body = "mapper" if kind == "map" else "predicate"
    made = lit(kind == "every")
    for _ in range(4):
        made = {"kind": kind, "array": get("list"), body: made}
        if kind in ("filter", "find"):
            made = op("isNull", made)
    assert end(loaded({"go": put("count", made)}, STATE), data={"list": list(range(many))}) == faults.LIMIT_EXCEEDED


def test_the_same_array_many_times_in_one_is_not_written_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FLOW_WORK_MAX", 5_000)
    made = lit(["x"])
    for _ in range(60):
        made = {"kind": "append", "array": lit([]), "items": [made]}
    wide = {"kind": "map", "array": lit(list(range(10))), "mapper": get("$array")}
    for _ in range(2):
        wide = {"kind": "map", "array": wide, "mapper": wide}
    assert end(unchecked({"go": put("text", op("toString", wide))}, STATE)) == faults.LIMIT_EXCEEDED
    assert end(unchecked({"go": put("text", op("toString", made))}, STATE)) == "complete"


def test_a_document_with_too_many_nodes_is_refused() -> None:
    steps = [put("count", lit(1))] * (limits.FLOW_NODES_MAX * 3)
    with pytest.raises(faults.SchemaRefused, match="more than"):
        unchecked({"go": {"flow": {"kind": "seq", "steps": steps}}})
    enough = [put("count", lit(1))] * (limits.FLOW_NODES_MAX // 2)
    assert end(unchecked({"go": {"flow": {"kind": "seq", "steps": enough}}})) == faults.LIMIT_EXCEEDED


def test_values_from_outside_are_bounded() -> None:
    deep: Any = 1
    for _ in range(limits.FLOW_DEPTH_MAX + 1):
        deep = [deep]
    for value in (deep, [0] * (limits.FLOW_VALUE_ITEMS_MAX + 1), "x" * (limits.FLOW_TEXT_LENGTH_MAX + 1)):
        with pytest.raises(faults.NotJson):
            js_values.from_outside(value, "value")
