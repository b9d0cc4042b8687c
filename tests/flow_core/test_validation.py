"""What `validate` finds, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from tests.flow_core.documents import COUNTER, HALT, document, effect, field, get, lit, op, put
from worldline.flow_core import document_schema, faults, validation

SEALED = document_schema.sealed(COUNTER)


def codes(found: Any) -> list[str]:
    return [each.code for each in validation.validate(found)]


def test_a_good_document_has_no_problem() -> None:
    assert codes(SEALED) == []


@pytest.mark.parametrize(
    "change",
    [
        {"id": "counter"},
        {"version": "1"},
        {"hash": ""},
        {"state": {"fields": {}}},
        {"computed": {"fields": {}}},
        {"actions": {}},
        {"state": {"fields": {"count": {"type": "number", "required": False}}}},
        {"state": {"fields": {"count": {"type": "integer", "required": True}}}},
        {"state": {"fields": {"count": {"type": {"enum": []}, "required": True}}}},
        {"actions": {"a": {"flow": {"kind": "loop"}}}},
        {"actions": {"a": {"flow": {"kind": "patch", "op": "set", "path": "count"}}}},
        {"actions": {"a": {"flow": {"kind": "patch", "op": "add", "path": "count", "value": lit(1)}}}},
        {"actions": {"a": {"flow": {"kind": "seq", "steps": {}}}}},
        {"actions": {"a": {"flow": HALT, "available": {"kind": "reduce"}}}},
        {"computed": {"fields": {"computed.x": {"deps": [], "expr": {"kind": "add", "left": lit(1)}}}}},
        {"types": {"T": 1}},
    ],
)
def test_shapes(change: dict[str, Any]) -> None:
    made = {**SEALED, **change}
    found = codes({**made, "hash": made["hash"] and document_schema.sealed(made)["hash"]})
    assert found
    assert set(found) == {"SCHEMA_ERROR"}


@pytest.mark.parametrize("missing", ["id", "version", "hash", "types", "state", "computed", "actions"])
def test_every_part_is_needed(missing: str) -> None:
    assert codes({name: each for name, each in SEALED.items() if name != missing}) == ["SCHEMA_ERROR"]


def test_all_that_is_missing_is_said() -> None:
    found = validation.validate({})
    assert [each.path for each in found] == ["id", "version", "hash", "types", "state", "computed", "actions"]
    assert {each.code for each in found} == {"SCHEMA_ERROR"}


def test_a_wrong_part_hides_no_other() -> None:
    fields = {
        "a": {"type": "number"},
        "b": {"type": "integer", "required": True},
        "c": {"type": "string", "required": False},
    }
    actions = {"x": {"flow": {"kind": "loop"}}, "y": 3}
    found = validation.validate(
        {
            **SEALED,
            "id": 1,
            "version": "1",
            "types": {"T": 1},
            "state": {"fields": fields},
            "computed": {},
            "actions": actions,
        }
    )
    assert sorted(each.path for each in found) == [
        "actions.x.flow",
        "actions.y",
        "computed.fields",
        "id",
        "state.fields.a",
        "state.fields.b",
        "state.fields.c",
        "types",
        "version",
    ]
    empty = {"state": {"fields": {}}, "computed": {"fields": []}, "actions": {"y": 3}}
    said = {each.path: each.message for each in validation.validate({**SEALED, **empty})}
    assert said["state.fields"] == "at least one is needed"
    assert sorted(said) == ["actions.y", "computed.fields", "state.fields"]


def test_what_is_no_object() -> None:
    assert codes([]) == codes(None) == codes("x") == ["SCHEMA_ERROR"]


def test_ids_may_be_uuids() -> None:
    assert codes(document_schema.sealed({**COUNTER, "id": "8ad8a6f8-9b0e-4f5e-8a57-3a9f1ed8c001"})) == []


def test_a_hash_that_is_not_the_documents() -> None:
    assert codes({**SEALED, "hash": "0" * 64}) == ["V-008"]


@pytest.mark.parametrize(
    ("computed", "expected"),
    [
        ({"computed.x": {"deps": ["nowhere"], "expr": lit(1)}}, ["V-001"]),
        ({"computed.x": {"deps": [], "expr": get("count")}}, ["V-001"]),
        ({"computed.x": {"deps": ["count"], "expr": get("nowhere")}}, ["V-003"]),
        ({"computed.x": {"deps": [], "expr": get("system.status")}}, ["V-003"]),
        ({"computed.x": {"deps": [], "expr": get("meta.version")}}, ["V-003"]),
        ({"computed.x": {"deps": [], "expr": get("input.a")}}, ["V-003"]),
        ({"computed.x": {"deps": ["loose"], "expr": get("loose.a.b")}}, []),
        (
            {"computed.x": {"deps": ["list"], "expr": {"kind": "map", "array": get("list"), "mapper": get("$item.a")}}},
            [],
        ),
        (
            {
                "computed.x": {"deps": ["computed.y"], "expr": get("computed.y")},
                "computed.y": {"deps": ["computed.x"], "expr": get("computed.x")},
            },
            ["V-002"],
        ),
    ],
)
def test_computed_values(computed: Any, expected: list[str]) -> None:
    fields = {"loose": field("object"), "list": field("array", [])}
    assert codes(document({"go": HALT}, fields, computed)) == expected


DECLARED = field("object", required=True, fields={"n": field("number", required=True)})


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        ({"go": put("count", get("nowhere"))}, ["V-003"]),
        ({"go": put("count", get("input.any"))}, []),
        ({"go": {"flow": put("count", get("input.any")), "input": DECLARED}}, ["V-003"]),
        ({"go": {"flow": put("count", get("input.n")), "input": DECLARED}}, []),
        ({"go": {"flow": HALT, "available": op("gt", get("nowhere"), lit(1))}}, ["V-003"]),
        ({"go": effect("io", a=get("system.status"), b=get("meta.intentId"), c=get("$host.x"))}, []),
        ({"go": put("count", get("computed.nowhere"))}, ["V-003"]),
        ({"go": {"kind": "call", "flow": "other"}}, ["V-004"]),
        ({"go": {"kind": "call", "flow": "go"}}, ["V-005"]),
        ({"go": {"kind": "call", "flow": "b"}, "b": {"kind": "call", "flow": "go"}}, ["V-005", "V-005"]),
        ({"go": put("nowhere", lit(1))}, []),
    ],
)
def test_actions(actions: Any, expected: list[str]) -> None:
    assert codes(document(actions)) == expected


def test_a_refusal_says_what_and_how_much_more() -> None:
    with pytest.raises(faults.SchemaRefused, match=r"V-003 at actions.go.flow.value: 'a' .* \(and 1 more\)") as refused:
        validation.load(document({"go": put("count", op("add", get("a"), get("b")))}))
    assert [each.code for each in refused.value.problems] == ["V-003", "V-003"]
