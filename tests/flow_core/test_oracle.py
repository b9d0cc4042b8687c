"""Random documents: the compiled closures do what the interpreter does that walks the document."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import options
from tests.flow_core import interpreter
from tests.flow_core.documents import document, field, first
from tests.flow_core.test_vectors import same
from worldline.flow_core import core, flow_records, js_values, validation
from worldline.flow_core.expressions import compiler, shapes
from worldline.flow_core.expressions.scope import EvalScope

EXAMPLES = options.number("oracle_examples")
FAST = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])

FIELDS = {
    "count": "number",
    "name": "string",
    "flag": "boolean",
    "list": "array",
    "thing": "object",
    "other": "object",
}
PATHS = [
    *FIELDS,
    "list.0",
    "list.length",
    "thing.a",
    "thing.a.b",
    "nothing",
    "input",
    "input.a",
    "meta.version",
    "meta.intentId",
    "system.status",
    "$item",
    "$item.a",
    "$index",
    "$array",
    "computed.c0",
    "$other.x",
]

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-50, 50)
    | st.sampled_from([0.5, -2.5, 1e21, 2.0**53 - 1, 1e-7, 3.999])
    | st.sampled_from(["", "a", "abc", "10", " 7px", "😀", "a,b", "$&", "0", "Infinity"])
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "b", "10", "9"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def expressions(draw: st.DrawFn, depth: int = 4) -> dict[str, Any]:
    """Any expression, up to a depth."""
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        if draw(st.booleans()):
            return {"kind": "lit", "value": draw(JSON)}
        return {"kind": "get", "path": draw(st.sampled_from(PATHS))}
    inner = expressions(depth=depth - 1)
    kind = draw(st.sampled_from([each for each in shapes.KINDS if each not in ("lit", "get")]))
    made: dict[str, Any] = {"kind": kind}
    for name, form in shapes.KINDS[kind].items():
        if form == "e" or (form == "e?" and draw(st.booleans())):
            made[name] = draw(inner)
        elif form == "*":
            made[name] = draw(st.lists(inner, max_size=3))
        elif form == "{}":
            made[name] = draw(st.dictionaries(st.sampled_from(["a", "b", "9"]), inner, max_size=2))
        elif form == "s":
            made[name] = draw(st.sampled_from(["a", "b", "length"]))
    return made


@st.composite
def states(draw: st.DrawFn) -> dict[str, Any]:
    """Data that fits `FIELDS`."""
    thing = st.dictionaries(st.sampled_from(["a", "b", "10"]), JSON, max_size=3)
    return {
        "count": draw(st.integers(-9, 9) | st.floats(-9, 9)),
        "name": draw(st.sampled_from(["", "abc", "5", "a😀"])),
        "flag": draw(st.booleans()),
        "list": draw(st.lists(JSON, max_size=4)),
        "thing": draw(thing),
        "other": draw(thing),
    }


@FAST
@given(expressions(), states(), JSON)
def test_an_expression_compiles_to_what_it_says(expression: dict[str, Any], data: dict[str, Any], given_: Any) -> None:
    snapshot = flow_records.Snapshot(
        data=js_values.from_outside(data, "data"),
        computed={"computed.c0": [1, "x"]},
        system=flow_records.System(),
        input=js_values.from_outside(given_, "input"),
        meta=flow_records.Meta(4, 1_000, "seed", "h"),
    )
    found = compiler.Compiler().one(expression)(EvalScope(snapshot, intent_id="i", action="act"))
    expected = interpreter.evaluate(expression, interpreter.Env(snapshot, "i", "act"))
    assert same(found, expected)


@st.composite
def flows(draw: st.DrawFn, depth: int = 3, calls: tuple[str, ...] = ()) -> dict[str, Any]:
    kinds = ["patch", "patch", "patch", "effect", "halt", "fail", *(["call"] if calls else [])]
    kind = draw(st.sampled_from(kinds if depth == 0 else [*kinds, "seq", "seq", "if", "if"]))
    value = expressions(depth=2)
    inner = flows(depth=depth - 1, calls=calls)
    if kind == "seq":
        return {"kind": "seq", "steps": draw(st.lists(inner, max_size=4))}
    if kind == "if":
        made = {"kind": "if", "cond": draw(value), "then": draw(inner)}
        return made | ({"else": draw(inner)} if draw(st.booleans()) else {})
    if kind == "patch":
        op = draw(st.sampled_from(["set", "set", "set", "merge", "unset"]))
        path = draw(st.sampled_from(list(FIELDS)))
        return {"kind": "patch", "op": op, "path": path} | ({} if op == "unset" else {"value": draw(value)})
    if kind == "effect":
        return {
            "kind": "effect",
            "type": "io",
            "params": draw(st.dictionaries(st.sampled_from("ab"), value, max_size=2)),
        }
    if kind == "call":
        return {"kind": "call", "flow": draw(st.sampled_from(calls))}
    return {"kind": kind} | ({"code": "NO"} if kind == "fail" else {})


@FAST
@given(flows(calls=("second",)), flows(), states(), JSON)
def test_a_flow_does_what_it_says(
    main: dict[str, Any], second: dict[str, Any], data: dict[str, Any], given_: Any
) -> None:
    constant = {"computed.c0": {"deps": [], "expr": {"kind": "lit", "value": [1, "x"]}}}
    declared = {name: field(kind) for name, kind in FIELDS.items()}
    made = document({"main": {"flow": main}, "second": {"flow": second}}, declared, constant)
    domain = validation.load_unchecked(made)
    snapshot = first(domain, data)
    intent = flow_records.Intent("main", "i", js_values.from_outside(given_, "input"))
    found = core.Core().compute(domain, snapshot, intent, flow_records.JobContext(now=5))
    before = flow_records.Snapshot(
        snapshot.data, {"computed.c0": [1, "x"]}, snapshot.system, snapshot.meta, intent.input
    )
    expected = interpreter.run_flow(made, "main", before, "i")
    assert same(found.snapshot.data, expected.data)
    assert found.status == {"running": "complete"}.get(expected.status, expected.status)
    error = found.snapshot.system.last_error
    assert (error.code if error else "") == expected.code
    assert [(each.type, each.params) for each in found.requirements] == list(expected.effects)
