"""Expressions at their edges, as the reference evaluates them, and where this Core differs on purpose."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.flow_core.documents import get, lit
from tests.flow_core.interpreter import Env, evaluate
from worldline.flow_core import flow_records, js_values
from worldline.flow_core.expressions import compiler, shapes
from worldline.flow_core.expressions.scope import EvalScope

NAN, INF, U = math.nan, math.inf, js_values.MISSING
NOTHING = get("nothing")  # undefined

SNAPSHOT = flow_records.Snapshot(
    data={
        "a": {"b": [{"c": 1}, {"c": 5}]},
        "x.y": 7,
        "computed": {"q": 9},
        "$host": {"k": 1},
        "nan": NAN,
        "inf": INF,
        "grid": [[1, 2], [3]],
    },
    computed={"computed.t": 3},
    system=flow_records.System(),
    input={"amt": 4},
    meta=flow_records.Meta(version=3, timestamp=1_704_067_200_000, random_seed="seed", schema_hash="h"),
)


def x(kind: str, *args: Any, **named: Any) -> dict[str, Any]:
    """An expression whose arguments are values, or expressions already."""
    forms = shapes.KINDS[kind]
    given = dict(zip(forms, args, strict=False)) | named
    if list(forms.values()) == ["*"]:
        given = {next(iter(forms)): list(args)}
    made: dict[str, Any] = {"kind": kind}
    for name, value in given.items():
        form = forms[name]
        if form in ("s", "v"):
            made[name] = value
        elif form == "*":
            made[name] = [wrap(each) for each in value]
        else:
            made[name] = {k: wrap(v) for k, v in value.items()} if form == "{}" else wrap(value)
    return made


def wrap(value: Any) -> Any:
    if isinstance(value, dict) and "kind" in value:
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return get("nan") if math.isnan(value) else get("inf")
    return lit(value)


def run(expression: dict[str, Any]) -> Any:
    scope = EvalScope(SNAPSHOT, intent_id="intent-1", action="act")
    return compiler.Compiler().one(expression)(scope)


ITEM, INDEX = get("$item"), get("$index")
LABEL = x("concat", INDEX, ":", ITEM)

EDGES: list[tuple[dict[str, Any], Any]] = [
    (x("eq", None, NOTHING), False),
    (x("eq", NAN, NAN), False),
    (x("eq", [1], [1]), False),
    (x("neq", {}, {}), True),
    (x("eq", True, 1), False),
    (x("eq", get("a"), get("a")), True),
    (x("eq", 1, 1.0), True),
    (x("gt", "b", "a"), False),
    (x("gt", "10", "9"), True),
    (x("gt", None, -1), True),
    (x("gte", None, 0), True),
    (x("lt", "abc", 1), True),
    (x("lte", 2, "2"), True),
    (x("add", "5", 3), 8),
    (x("add", "5px", 1), 6),
    (x("add", None, 1), 1),
    (x("add", "abc", 1), 1),
    (x("add", [5], 1), 1),
    (x("add", 0.1, 0.2), 0.30000000000000004),
    (x("add", 2**53 - 1, 2), 2.0**53),
    (x("sub", 5, "2"), 3),
    (x("mul", "2e3", 2), 4000),
    (x("mul", "Infinity", 2), INF),
    (x("mul", ".5", 2), 1),
    (x("mul", 1e308, 10), INF),
    (x("div", 10, "0"), None),
    (x("div", 10, "x"), None),
    (x("div", 0, 5), 0),
    (x("div", 1, -0.0), None),
    (x("div", 10, 4), 2.5),
    (x("mod", -7, 3), -1),
    (x("mod", 7, -3), 1),
    (x("mod", 5.5, 2), 1.5),
    (x("mod", 5, 0), None),
    (x("neg", "3"), -3),
    (x("abs", "-3"), 3),
    (x("floor", -0.5), -1),
    (x("ceil", -0.5), 0),
    (x("round", 0.5), 1),
    (x("round", 2.5), 3),
    (x("round", 1.5), 2),
    (x("round", -2.5), -2),
    (x("round", 0.49999999999999994), 0),
    (x("sqrt", -1), None),
    (x("sqrt", 9), 3),
    (x("floor", 1e21), 1e21),
    (x("len", None), 0),
    (x("len", "😀"), 2),
    (x("len", {"a": 1}), 1),
    (x("len", [1, 2]), 2),
    (x("strLen", "😀"), 2),
    (x("typeof", None), "null"),
    (x("typeof", NAN), "number"),
    (x("typeof", NOTHING), "undefined"),
    (x("typeof", [1]), "array"),
    (x("typeof", {}), "object"),
    (x("typeof", True), "boolean"),
    (x("isNull", 0), False),
    (x("isNull", NAN), False),
    (x("isNull", NOTHING), True),
    (x("not", "0"), False),
    (x("not", []), False),
    (x("not", NAN), False),
    (x("not", ""), True),
    (x("toString", 1), "1"),
    (x("toString", 0.1), "0.1"),
    (x("toString", -0.0), "0"),
    (x("toString", {"a": 1}), "[object Object]"),
    (x("toString", NAN), "NaN"),
    (x("toString", [1, [2, None], "a"]), "1,2,,a"),
    (x("toString", None), ""),
    (x("toString", True), "true"),
    (x("toNumber", "  -4.5e2xyz"), -450),
    (x("toNumber", "Infinity"), INF),
    (x("toNumber", "1_000"), 1),
    (x("toNumber", "٣"), 0),
    (x("toNumber", "0x10"), 0),
    (x("toNumber", " 7 "), 7),
    (x("toNumber", "1.e2"), 100),
    (x("toBoolean", NAN), True),
    (x("toBoolean", "false"), True),
    (x("toUpperCase", "straße"), "STRASSE"),
    (x("toLowerCase", "İI"), "i̇i"),
    (x("trim", 12.5), "12.5"),
    (x("trim", "\ufeff a\u00a0"), "a"),
    (x("trim", "\x1ca"), "\x1ca"),
    (x("toUpperCase", {}), "[OBJECT OBJECT]"),
    (x("substring", "hello", 3, 1), "el"),
    (x("substring", "hello", -2), "hello"),
    (x("substring", "hello", "1.9", "x"), "h"),
    (x("substring", 12345, 1, 3), "23"),
    (x("slice", [1, 2, 3, 4], -2), [3, 4]),
    (x("slice", [1, 2, 3, 4], 1, -1), [2, 3]),
    (x("slice", "abc", 1), []),
    (x("slice", [1, 2, 3, 4], 1.7), [2, 3, 4]),
    (x("at", [10, 20, 30], 1.5), U),
    (x("at", [10, 20, 30], "1"), 20),
    (x("at", [10], -1), None),
    (x("at", [10], 1), None),
    (x("at", {"a": 1}, "a"), 1),
    (x("at", {"a": 1}, 1), None),
    (x("includes", x("append", None, items=[NAN]), NAN), True),
    (x("includes", [[1]], [1]), False),
    (x("includes", "abc", "a"), False),
    (x("includes", [1], True), False),
    (x("unique", [1, True, "1", 1.0]), [1, True, "1"]),
    (x("unique", [{"a": 1}, {"a": 1}]), [{"a": 1}, {"a": 1}]),
    (x("concat", [1], None, 2, [3, [4]]), [1, 2, 3, [4]]),
    (x("concat"), ""),
    (x("concat", 0.1, 1e21), "0.11e+21"),
    (x("min"), None),
    (x("min", 1, NAN), NAN),
    (x("min", 0, -0.0), 0),
    (x("max", "3", None, 2), 3),
    (x("max", 1, NAN), NAN),
    (x("pow", -8, 1 / 3), None),
    (x("pow", 0, 0), 1),
    (x("pow", 0, -1), None),
    (x("pow", 10, 400), None),
    (x("pow", 1e15, 64), None),
    (x("pow", -1e15, 63), None),
    (x("pow", 2, 2.5), 5.656854249492381),
    (x("pow", 2, 10), 1024),
    (x("sumArray", [1, "2", None, "x", True]), 4),
    (x("sumArray", "12"), 0),
    (x("minArray", ["3", None, 2]), 0),
    (x("minArray", []), None),
    (x("maxArray", [1, 3]), 3),
    (x("keys", [7, 8]), ["0", "1"]),
    (x("keys", "ab"), []),
    (x("values", [7, 8]), [7, 8]),
    (x("entries", [7]), [["0", 7]]),
    (x("keys", {"b": 1, "10": 1, "9": 1, "01": 1}), ["9", "10", "01", "b"]),
    (x("merge", {"a": 1}, [9], None, {"a": {"x": 1}}), {"a": {"x": 1}}),
    (x("append", None, items=[1]), [1]),
    (x("field", {"a": None}, "a"), None),
    (x("field", [1], "length"), None),
    (x("replace", "a.b", ".", "$$"), "a$b"),
    (x("replace", "abcb", "b", "<$&>"), "a<b>cb"),
    (x("replace", "ab", "", "x"), "xab"),
    (x("replace", "ab", "z", "x"), "ab"),
    (x("split", "a😀", ""), ["a", "\ud83d", "\ude00"]),
    (x("split", "", ""), [""]),
    (x("split", "a,b", ","), ["a", "b"]),
    (x("indexOf", "😀b", "b"), 2),
    (x("indexOf", "a", "z"), -1),
    (x("indexOf", "a", ""), 0),
    (x("startsWith", "abc", ""), True),
    (x("endsWith", "abc", "bc"), True),
    (x("strIncludes", "abc", "b"), True),
    (x("coalesce"), None),
    (x("coalesce", False), False),
    (x("coalesce", None, NOTHING, 2), 2),
    (x("if", "", 1, 2), 2),
    (x("if", [], 1, 2), 1),
    (x("if", NAN, 1, 2), 1),
    (x("or", 0, "x"), True),
    (x("and"), True),
    (x("or"), False),
    (x("every", None, ITEM), True),
    (x("some", None, ITEM), False),
    (x("find", [1], x("gt", ITEM, 1)), None),
    (x("find", [1, 2], x("gt", ITEM, 1)), 2),
    (x("filter", "abc", ITEM), []),
    (x("map", None, ITEM), []),
    (x("first", []), None),
    (x("last", [1, 2]), 2),
    (x("reverse", [1, 2]), [2, 1]),
    (x("reverse", 1), []),
    (x("flat", [[1], [[2]], 3]), [1, [2], 3]),
    (x("map", get("grid"), x("map", ITEM, LABEL)), [["0:1", "1:2"], ["0:3"]]),
    (x("map", get("grid"), x("len", get("$array"))), [2, 2]),
    (INDEX, U),
    (x("hasKey", {"a": 1}, "a"), True),
    (x("hasKey", [1], "0"), False),
    (x("pick", {"a": 1, "b": 2}, ["a", 3, "z"]), {"a": 1}),
    (x("omit", {"a": 1, "b": 2}, ["a"]), {"b": 2}),
    (x("omit", {"a": 1}, "a"), {"a": 1}),
    (x("pick", [1], ["0"]), {}),
    (x("fromEntries", [["a", 1], ["b"], [1, 2], "x"]), {"a": 1}),
    (x("object", {"k": 1}), {"k": 1}),
    (get("a.b.1.c"), 5),
    (get("a.b.length"), 2),
    (get("a.z.q"), U),
    (get("system.status"), "idle"),
    (get("computed"), {"q": 9}),
    (get("computed.t"), 3),
    (get("computed.t.x"), U),
    (get("computed.zz"), U),
    (get("input.amt"), 4),
    (get("input.amt.x"), U),
    (get("input"), {"amt": 4}),
    (get("meta.version"), 3),
    (get("meta.schemaHash"), "h"),
    (get("meta.actionName"), "act"),
    (get("meta.intentId"), "intent-1"),
    (get("meta.randomSeed"), "seed"),
    (get("meta"), U),
    (get("$host.k"), 1),
    (get("x\\.y"), 7),
    (get("x.y"), U),
    (get("$system.uuid"), "656e451d-c485-4a8e-103e-001109859bdf"),
    (get("$system.timestamp"), "2024-01-01T00:00:00.000Z"),
    (get("$system.other"), U),
    (
        x("concat", get("$system.uuid"), " ", get("$system.uuid")),
        "656e451d-c485-4a8e-103e-001109859bdf 656e451c-c485-4a8e-103e-001109859bb4",
    ),
]


def same(left: Any, right: Any) -> bool:
    """Equal, types and NaN included; a number is a number."""
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    return js_values.same_value(left, right)


@pytest.mark.parametrize(("expression", "expected"), EDGES, ids=range(len(EDGES)))
def test_edges(expression: dict[str, Any], expected: Any) -> None:
    found = run(expression)
    assert same(found, expected), (expression, found)
    assert not isinstance(found, float) or js_values.normal(found) is found or found != found


@pytest.mark.parametrize(("expression", "expected"), EDGES, ids=range(len(EDGES)))
def test_the_interpreter_agrees(expression: dict[str, Any], expected: Any) -> None:
    if "$system" not in str(expression):
        found = evaluate(expression, Env(SNAPSHOT, intent_id="intent-1", action="act"))
        assert same(found, expected), found


@pytest.mark.parametrize("expression", [x("at", {}, "toString"), x("field", {}, "toString")], ids=["at", "field"])
def test_nothing_is_inherited_from_a_prototype(expression: dict[str, Any]) -> None:
    """The reference gives a function here; a member that an object does not have is null."""
    assert run(expression) is None


def test_every_kind_has_an_edge() -> None:
    said = str(EDGES)
    assert [kind for kind in shapes.KINDS if f"'kind': '{kind}'" not in said] == []
    assert len(shapes.KINDS) == 72


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, "0"),
        (-0.0, "0"),
        (1, "1"),
        (1.5, "1.5"),
        (1e21, "1e+21"),
        (1e20, "100000000000000000000"),
        (0.000001, "0.000001"),
        (1e-7, "1e-7"),
        (1e30, "1e+30"),
        (4.5, "4.5"),
        (1e-27, "1e-27"),
        (5e-324, "5e-324"),
        (9007199254740993, "9007199254740992"),
        (-1.25e-9, "-1.25e-9"),
        (100.0, "100"),
        (0.1 + 0.2, "0.30000000000000004"),
        (333333333.33333329, "333333333.3333333"),
        (1e16, "10000000000000000"),
        (-INF, "-Infinity"),
        (123456.789, "123456.789"),
    ],
)
def test_numbers_as_text(number: float, expected: str) -> None:
    assert js_values.number_text(js_values.normal(number)) == expected
