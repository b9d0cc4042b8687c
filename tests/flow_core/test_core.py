"""Core: what one compute or apply does to a snapshot, step by step."""

from __future__ import annotations

from typing import Any

import pytest

from tests.flow_core.documents import (
    COUNTER,
    HALT,
    effect,
    field,
    first,
    get,
    lit,
    loaded,
    once,
    op,
    put,
    seq,
    unchecked,
    when,
)
from worldline.base import limits
from worldline.flow_core import (
    compiled_document,
    core,
    document_schema,
    faults,
    flow_records,
    hashing,
    js_values,
    patches,
    validation,
)
from worldline.flow_core import computed as computed_values
from worldline.flow_core.expressions import compiler, reasons

CORE = core.Core()
CONTEXT = flow_records.JobContext(now=1_000, random_seed="i")
ANY = {
    "note": field("string"),
    "items": field(
        "array", [], items={"type": "object", "required": True, "fields": {"d": {"type": "number", "required": True}}}
    ),
}


def compute(domain: compiled_document.Compiled, action: str = "go", data: Any = None, **options: Any) -> core.Computed:
    given = options.pop("input", js_values.MISSING)
    snapshot = options.pop("snapshot", None) or first(domain, data)
    with_core: core.Core = options.pop("core", CORE)
    return with_core.compute(domain, snapshot, flow_records.Intent(action, "i", given), CONTEXT, **options)


def code(found: core.Computed) -> str:
    error = found.snapshot.system.last_error
    return error.code if error else ""


# --- compute ---------------------------------------------------------------------------------------------


def test_the_counter_of_the_contract() -> None:
    domain = validation.load(document_schema.sealed(COUNTER))
    found = compute(domain, "increment")
    after = found.snapshot
    assert (after.data, after.computed) == ({"count": 1}, {"computed.doubled": 2})
    assert (found.status, after.system.status, after.meta.version, after.meta.timestamp) == (
        "complete",
        "idle",
        1,
        1_000,
    )
    assert found.trace is not None
    node = found.trace.nodes[found.trace.root]
    assert (found.trace.root, node.kind, node.inputs, node.output) == (
        "trace-0",
        "patch",
        {"op": "set", "path": "count"},
        1,
    )


def test_an_effect_stops_the_flow_and_names_its_node() -> None:
    flow = seq(put("note", lit("loading")), once("count", "api.get", url=lit("/u")), put("note", lit("never")))
    found = compute(unchecked({"fetch": flow}, ANY), "fetch", {"count": None})
    (requirement,) = found.requirements
    assert found.status == found.snapshot.system.status == "pending"
    assert requirement.flow_position == flow_records.FlowPosition("actions.fetch.flow.steps[1].then", 0)
    assert (requirement.intent_id, requirement.created_at, requirement.params) == ("i", 1_000, {"url": "/u"})
    assert found.snapshot.system.pending_requirements == (requirement,)
    assert (found.snapshot.system.current_action, found.snapshot.data["note"]) == ("fetch", "loading")
    assert found.trace is not None
    assert [each.kind for each in found.trace.nodes.values()] == ["patch", "effect", "branch", "flow"]
    assert (found.trace.root, found.trace.terminated_by) == ("trace-3", "effect")


def test_the_requirement_id_is_that_of_section_8_2() -> None:
    found = compute(loaded({"go": effect("api.get", into=lit("count"), n=get("count"))}))
    (requirement,) = found.requirements
    assert requirement.id == hashing.requirement_id(
        schema_hash=found.snapshot.meta.schema_hash,
        intent_id="i",
        action_id="go",
        node_path="actions.go.flow",
        effect="api.get",
        params={"into": "count", "n": 0},
    )


def test_computed_values_stay_as_they_were_during_a_flow() -> None:
    flow = seq(put("count", lit(10)), put("count", op("add", get("count"), get("computed.doubled"))))
    assert compute(loaded({"go": flow}), data={"count": 1}).snapshot.data["count"] == 12


def test_an_if_node_takes_0_and_empty_text_for_set() -> None:
    flow = seq(*(when(lit(each), put("count", op("add", get("count"), lit(1)))) for each in (0, "", None, False, True)))
    assert compute(loaded({"go": flow})).snapshot.data["count"] == 3


def test_what_was_patched_before_an_error_stays() -> None:
    found = compute(loaded({"go": seq(put("count", lit(5)), put("count", lit("x")), put("count", lit(6)))}))
    assert (found.status, found.snapshot.data["count"], code(found)) == ("error", 5, faults.TYPE_MISMATCH)
    assert found.snapshot.system.last_error is not None
    assert found.snapshot.system.last_error.source.node_path == "actions.go.flow.steps[1]"


@pytest.mark.parametrize(
    ("flow", "expected"),
    [
        (put("nowhere", lit(1)), faults.PATH_NOT_FOUND),
        (put("$host.x", lit(1)), faults.PATH_NOT_FOUND),
        (put("note", lit(1)), faults.TYPE_MISMATCH),
        (put("note", get("nothing")), faults.TYPE_MISMATCH),
        (put("count", op("mul", lit("Infinity"), lit(2))), faults.INVALID_VALUE),
        (put("items.0", lit({})), faults.TYPE_MISMATCH),
        (put("items.5", lit({"d": 1})), faults.PATH_NOT_FOUND),
        (put("items", lit([{"d": 1, "more": 2}])), faults.TYPE_MISMATCH),
        ({"kind": "patch", "op": "unset", "path": "items.0"}, faults.TYPE_MISMATCH),
        ({"kind": "call", "flow": "nobody's"}, faults.UNKNOWN_FLOW),
        ({"kind": "call", "flow": "go"}, faults.CYCLIC_CALL),
        ({"kind": "fail", "code": "NO"}, faults.VALIDATION_ERROR),
    ],
)
def test_errors_of_a_flow_are_values(flow: Any, expected: str) -> None:
    found = compute(unchecked({"go": flow}, ANY), data={"items": [{"d": 1}]})
    assert (found.status, code(found)) == ("error", expected)
    assert found.snapshot.system.errors == (found.snapshot.system.last_error,)


def test_a_kind_that_is_unknown_is_refused_when_it_is_compiled() -> None:
    with pytest.raises(faults.Fault, match="'reduce'") as found:
        compiler.Compiler().one({"kind": "reduce"})
    assert found.value.code == faults.INTERNAL_ERROR


def test_fail_says_its_message_and_code() -> None:
    said = {"kind": "fail", "code": "LOW", "message": op("concat", lit("only "), get("count"))}
    found = compute(loaded({"go": said}))
    error = found.snapshot.system.last_error
    assert error is not None
    assert (error.message, error.context) == ("only 0", {"code": "LOW"})
    assert found.trace is not None
    assert found.trace.nodes[found.trace.root].inputs == {"code": "LOW", "message": "only 0"}


def test_halt_is_no_error() -> None:
    found = compute(loaded({"go": seq(put("count", lit(1)), HALT, put("count", lit(2)))}))
    assert (found.status, found.snapshot.system.status, found.snapshot.data["count"]) == ("halted", "idle", 1)


def test_a_call_runs_on_the_same_data_and_names_its_nodes() -> None:
    inner = {"flow": seq(put("count", lit(7)), effect("io")), "available": lit(False)}
    found = compute(loaded({"go": seq(put("count", lit(1)), {"kind": "call", "flow": "inner"}), "inner": inner}))
    (requirement,) = found.requirements
    assert found.snapshot.data["count"] == 7
    assert requirement.flow_position.node_path == "actions.go.flow.steps[1].call(inner).steps[1]"
    assert requirement.action_id == "go"


def test_arrays_are_mapped_and_filtered_inline() -> None:
    doubled = effect("array.map", source=get("list"), select=op("mul", get("$item"), lit(2)), into=lit("list"))
    large = effect("array.filter", source=get("list"), where=op("gt", get("$item"), lit(3)), into=lit("list"))
    found = compute(loaded({"go": seq(doubled, large)}, {"list": field("array", [])}), data={"list": [1, 2, 3]})
    assert (found.status, found.snapshot.data["list"], found.requirements) == ("complete", [4, 6], ())


def test_system_patches_of_a_flow_are_without_effect() -> None:
    found = compute(loaded({"go": put("system.status", lit("error"))}))
    assert (found.status, found.snapshot.system.status) == ("complete", "idle")


# --- compute, early --------------------------------------------------------------------------------------

GATED = {"flow": put("count", lit(1)), "available": op("gt", get("count"), lit(5))}


@pytest.mark.parametrize(
    ("action", "intent", "expected"),
    [
        (put("count", lit(1)), flow_records.Intent("other", "i"), faults.UNKNOWN_ACTION),
        (put("count", lit(1)), flow_records.Intent("go", ""), faults.INVALID_INPUT),
        (GATED, flow_records.Intent("go", "i"), faults.ACTION_UNAVAILABLE),
        ({**GATED, "available": get("count")}, flow_records.Intent("go", "i"), faults.TYPE_MISMATCH),
    ],
)
def test_an_early_error_changes_nothing_but_the_version(
    action: Any, intent: flow_records.Intent, expected: str
) -> None:
    domain = loaded({"go": action})
    found = CORE.compute(domain, first(domain), intent, CONTEXT)
    assert (found.status, code(found), found.snapshot.data) == ("error", expected, {"count": 0})
    assert (found.snapshot.meta.version, found.snapshot.meta.timestamp) == (1, 1_000)
    error = found.snapshot.system.last_error
    assert error is not None
    assert error.source == flow_records.ErrorSource(intent.type, "")  # no node was run
    assert found.trace is not None
    assert found.trace.root == f"trace-error-{intent.intent_id}"
    node = found.trace.nodes[found.trace.root]
    assert (len(found.trace.nodes), node.kind, node.source_path) == (1, "error", "")
    assert node.inputs == {"code": expected, "message": error.message}


INPUT = field("object", required=True, fields={"n": field("number", required=True), "s": field("string")})


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ({"n": 1}, True),
        ({"n": 1, "s": "x"}, True),
        ({}, False),
        ({"n": "1"}, False),
        ({"n": 1, "more": 1}, False),
        (js_values.MISSING, False),
        ([1], False),
        ({"n": None}, False),
        ({"n": 1, "s": None}, True),
    ],
)
def test_input_is_checked(given: Any, fits: bool) -> None:
    found = compute(loaded({"go": {"flow": put("count", get("input.n")), "input": INPUT}}), input=given)
    assert code(found) == ("" if fits else faults.INVALID_INPUT)


NESTED = field(
    "object",
    required=True,
    fields={
        "of": field("object", required=True, fields={"a": field("number", required=True), "b": field("string")}),
        "list": field("array", [], items={"type": "number", "required": True}),
        "kind": field({"enum": ["x", None]}, required=True),
        "nothing": field("null", required=True),
    },
)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({}, ""),
        ({"of": {"a": 1, "b": None}}, ""),
        ({"list": None}, ""),
        ({"of": None}, "input.of"),
        ({"of": {"a": None}}, "input.of.a"),
        ({"list": [1, None]}, "input.list.1"),
    ],
)
def test_null_is_no_value_for_what_an_input_requires(change: Any, where: str) -> None:
    """At any depth, unless null is one of its values. A patch may empty any field of the state."""
    domain = loaded({"go": {"flow": HALT, "input": NESTED}}, {"of": NESTED})
    given = {"of": {"a": 1}, "list": [1], "kind": None, "nothing": None, **change}
    error = compute(domain, input=given).snapshot.system.last_error
    assert (error.message if error else "") == (f"{where} is required, and null is no value for it" if where else "")
    after = CORE.apply(domain, first(domain), [patches.set_("of", given)], CONTEXT)
    assert after.system.errors == ()


CONDITION = op(
    "and", op("gt", get("count"), lit(0)), op("not", op("isNull", get("note"))), op("lt", get("count"), lit(99))
)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"count": 0}, ("count > 0 is false (count = 0)", "note is set is false (note = null)")),
        ({"count": 99, "note": "x"}, ("count < 99 is false (count = 99)",)),
        ({"count": 5, "note": "x" * 99}, ()),
    ],
)
def test_a_refusal_names_the_parts_that_fail(data: Any, expected: tuple[str, ...]) -> None:
    domain = loaded({"go": {"flow": put("count", lit(1)), "available": CONDITION}}, ANY)
    snapshot = first(domain, data)
    found = CORE.refusal(domain, snapshot, flow_records.Intent("go", "i"))
    assert (found.reasons if found else ()) == expected
    assert (found is None) == (not expected)
    unknown = CORE.refusal(domain, snapshot, flow_records.Intent("other", "i"))
    assert unknown is not None
    assert unknown.code == faults.UNKNOWN_ACTION


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (op("or", op("eq", get("a"), lit("x")), op("isNull", get("b"))), '(a = "x") or (b is empty)'),
        (op("not", op("gte", op("add", get("a"), lit(1)), lit(2))), "not ((a + 1) ≥ 2)"),
        ({"kind": "startsWith", "str": get("a"), "prefix": lit("b")}, 'startsWith(a, "b")'),
        (op("toBoolean", get("computed.paid")), "computed.paid"),
    ],
)
def test_expressions_as_text(expression: Any, expected: str) -> None:
    assert reasons.text(expression) == expected


def test_available_is_not_asked_again_when_a_host_goes_on() -> None:
    domain = loaded({"go": GATED})
    assert compute(domain, reentry=True).snapshot.data["count"] == 1
    assert compute(domain, data={"count": 6}).snapshot.data["count"] == 1


def test_available_is_asked_of_every_new_intent_though_its_type_is_current() -> None:
    """The reference skips the condition for any intent of the type that is current."""
    domain = loaded({"go": {"flow": effect("io"), "available": op("eq", get("count"), lit(0))}})
    pending = compute(domain).snapshot
    assert pending.system.current_action == "go"
    changed = CORE.apply(domain, pending, [patches.set_("count", 1)], CONTEXT)
    assert code(compute(domain, snapshot=changed)) == faults.ACTION_UNAVAILABLE


def test_a_good_compute_clears_the_last_error_and_errors_are_bounded() -> None:
    domain = loaded({"go": put("count", lit("x")), "fine": HALT})
    snapshot = first(domain)
    for _ in range(limits.FLOW_ERRORS_MAX + 5):
        snapshot = compute(domain, snapshot=snapshot).snapshot
    assert len(snapshot.system.errors) == limits.FLOW_ERRORS_MAX
    after = compute(domain, "fine", snapshot=snapshot).snapshot
    assert (after.system.last_error, len(after.system.errors)) == (None, limits.FLOW_ERRORS_MAX)


def test_compute_keeps_the_seed_and_apply_sets_it() -> None:
    domain = loaded({"go": HALT})
    assert compute(domain).snapshot.meta.random_seed == "initial"
    assert CORE.apply(domain, first(domain), [], CONTEXT).meta.random_seed == "i"


def test_closing_patches_belong_to_the_end_of_an_intent() -> None:
    domain = loaded({"wait": effect("io"), "end": HALT, "no": {"flow": HALT, "available": lit(False)}})
    closing = [patches.set_("$host.done", True)]
    assert "$host" not in compute(domain, "wait", closing=closing).snapshot.data
    for action in ("end", "no"):
        assert compute(domain, action, closing=closing).snapshot.data["$host"] == {"done": True}


def test_abandon_ends_an_intent_and_leaves_the_others() -> None:
    domain = loaded({"go": effect("io")})
    pending = compute(domain).snapshot
    other = flow_records.Requirement("r", "other", "io", {}, "go", flow_records.FlowPosition("p", 0), 0)
    both = CORE.apply(
        domain,
        pending,
        [patches.set_(patches.CLEAR, flow_records.plain_list([*pending.system.pending_requirements, other]))],
        CONTEXT,
    )
    after = CORE.abandon(both, flow_records.Intent("go", "i"), CONTEXT, code="GIVEN_UP", message="no")
    assert after.system.pending_requirements == (other,)
    assert after.system.last_error is not None
    assert (after.system.status, after.system.last_error.code, after.system.current_action) == (
        "error",
        "GIVEN_UP",
        None,
    )
    assert after.meta.version == both.meta.version + 1


def test_effects_that_stand_beside_each_other_are_collected_if_asked_for() -> None:
    flow = seq(once("count", "a"), effect("b"), put("count", lit(3)), effect("c"))
    domain = loaded({"go": flow})
    together = compute(domain, data={"count": None}, core=core.Core(effects="parallel"))
    assert [each.type for each in together.requirements] == ["a", "b"]
    assert (together.status, together.snapshot.data["count"]) == ("pending", None)
    assert [each.type for each in compute(domain, data={"count": None}).requirements] == ["a"]


# --- apply -----------------------------------------------------------------------------------------------


def apply(given: Any, data: Any = None) -> flow_records.Snapshot:
    domain = loaded(
        {"go": HALT},
        {
            **ANY,
            "thing": field("object", fields={"a": field("number"), "b": field("string", required=True)}),
            "loose": field("object"),
        },
    )
    return CORE.apply(domain, first(domain, data), given, CONTEXT)


def test_no_patch_is_a_version_too() -> None:
    after = apply([])
    assert (after.meta.version, after.computed) == (1, {"computed.doubled": 0})


def test_a_refused_patch_is_skipped_and_the_others_are_applied() -> None:
    after = apply([patches.set_("count", "x"), patches.set_("count", 4), patches.set_("nowhere", 1)])
    assert (after.data["count"], after.computed["computed.doubled"]) == (4, 8)
    assert [each.code for each in after.system.errors] == [faults.TYPE_MISMATCH, faults.PATH_NOT_FOUND]
    assert after.system.last_error is not None
    assert (after.system.status, after.system.last_error.source.node_path) == ("error", "nowhere")
    assert after.system.last_error.context == {"patch": {"op": "set", "path": "nowhere"}}


@pytest.mark.parametrize(
    ("patch", "data", "expected"),
    [
        (patches.set_("items.0.d", 9), {"items": [{"d": 0}, {"d": 1}]}, {"items": [{"d": 9}, {"d": 1}]}),
        (patches.set_("items.1", {"d": 5}), {"items": [{"d": 0}]}, {"items": [{"d": 0}, {"d": 5}]}),
        (patches.merge("thing", {"a": 1}), {"thing": {"b": "x"}}, {"thing": {"a": 1, "b": "x"}}),
        (patches.unset("thing.a"), {"thing": {"a": 1, "b": "x"}}, {"thing": {"b": "x"}}),
        (patches.unset("thing.a"), {"thing": None}, {"thing": None}),
        (patches.set_("loose", [1]), {}, {"loose": [1]}),
        (patches.set_("$host.a.b", 1), {}, {"$host": {"a": {"b": 1}}}),
        (patches.merge("$host", {"x": 1}), {}, {"$host": {"x": 1}}),
        (patches.unset("$host.a"), {"$host": {"a": 1}}, {"$host": {}}),
        (patches.set_("count", None), {}, {"count": None}),
        (patches.set_("count", 2.0), {}, {"count": 2}),
    ],
)
def test_what_patches_do(patch: patches.Patch, data: Any, expected: dict[str, Any]) -> None:
    after = apply([patch], data)
    assert after.system.errors == ()
    assert {name: after.data[name] for name in expected} == expected


def test_an_index_is_written_into_the_array() -> None:
    """The reference turns the array into an object."""
    after = apply([patches.set_("items.0.d", 9)], {"items": [{"d": 0}]})
    assert isinstance(after.data["items"], list)


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        (patches.merge("thing", {"a": 1}), faults.TYPE_MISMATCH),
        (patches.Patch("merge", "loose", [1]), faults.TYPE_MISMATCH),
        (patches.set_("loose.x", 1), faults.PATH_NOT_FOUND),
        (patches.set_("thing", {"a": 1}), faults.TYPE_MISMATCH),
        (patches.set_("$host", 1), faults.TYPE_MISMATCH),
        (patches.set_("system.status", "idle"), faults.PATH_NOT_FOUND),
        (patches.set_("system.errors", []), faults.PATH_NOT_FOUND),
        (patches.set_("meta.version", 9), faults.PATH_NOT_FOUND),
        (patches.set_("computed.doubled", 9), faults.PATH_NOT_FOUND),
        (patches.set_("input.x", 9), faults.PATH_NOT_FOUND),
        (patches.unset("system.pendingRequirements"), faults.PATH_NOT_FOUND),
        (patches.set_("system.pendingRequirements", [{"id": "x"}]), faults.TYPE_MISMATCH),
    ],
)
def test_what_patches_may_not(patch: patches.Patch, expected: str) -> None:
    after = apply([patch], {"thing": None, "loose": {}})
    assert [each.code for each in after.system.errors] == [expected]


@pytest.mark.parametrize(
    "given",
    [
        [None],
        "set",
        [{"op": "replace", "path": "count", "value": 1}],
        [{"op": "set", "path": "", "value": 1}],
        [{"op": "set", "path": "count"}],
        [{"op": "set", "path": 3, "value": 1}],
        [patches.set_("count", float("nan"))],
        [patches.set_("note", b"x")],
        [patches.set_("note", "\ud800")],
        [patches.set_("loose", {"__proto__": 1})],
        [patches.set_("loose.__proto__.x", 1)],
        [patches.set_("loose", {1: 2})],
        [patches.set_("loose", object())],
    ],
)
def test_what_is_no_patch_is_refused_and_nothing_is_changed(given: Any) -> None:
    with pytest.raises(patches.BadPatch):
        apply(given)


def test_a_write_copies_so_places_never_share() -> None:
    flow = seq(
        put("a", get("b")), put("same", op("eq", get("a"), get("b"))), put("itself", op("eq", get("a"), get("a")))
    )
    fields = {name: field("object") for name in ("a", "b")} | {name: field("boolean") for name in ("same", "itself")}
    after = compute(loaded({"go": flow}, fields), data={"b": {"x": 1}}).snapshot
    assert (after.data["same"], after.data["itself"]) == (False, True)
    again = flow_records.decoded(flow_records.plain(after))
    assert flow_records.encoded(again) == flow_records.encoded(after)


# --- computed, explain -----------------------------------------------------------------------------------


def test_computed_values_are_evaluated_in_order_of_their_dependencies() -> None:
    names = {"c": ["b"], "a": [], "b": ["a"], "d": ["a", "c"]}
    fields = {
        f"computed.{name}": document_schema.ComputedField([f"computed.{each}" for each in deps], lit(1))
        for name, deps in names.items()
    }
    assert computed_values.ordered(fields) == ["computed.a", "computed.b", "computed.c", "computed.d"]


def test_a_computed_value_that_fails_leaves_none() -> None:
    broken = {"computed.x": {"deps": ["count"], "expr": op("mul", get("count"), lit("Infinity"))}}
    domain = loaded({"go": put("count", lit(1))}, computed=broken)
    after = CORE.apply(domain, first(domain, {"count": 2}), [], CONTEXT)
    assert (after.computed, [each.code for each in after.system.errors]) == ({}, [faults.INVALID_VALUE])
    assert code(compute(domain, data={"count": 2})) == faults.INVALID_VALUE


def test_explain_says_where_a_value_comes_from() -> None:
    computed = {
        "computed.a": {"deps": ["count"], "expr": op("add", get("count"), lit(1))},
        "computed.b": {"deps": ["computed.a"], "expr": op("mul", get("computed.a"), lit(2))},
    }
    domain = loaded({"go": HALT}, computed=computed)
    found = CORE.explain(domain, first(domain, {"count": 3}), "computed.b")
    assert (found.value, found.deps, found.trace.kind) == (8, ("computed.a",), "computed")
    assert [(each.source_path, each.output) for each in found.nodes.values()] == [
        ("count", 3),
        ("computed.a", 4),
        ("computed.b", 8),
    ]
    assert [each.inputs for each in found.nodes.values()] == [
        {"path": "count"},
        {"expr": computed["computed.a"]["expr"]},
        {"expr": computed["computed.b"]["expr"]},
    ]
    assert found.inputs == {"computed.a": 4}
    assert CORE.explain(domain, first(domain, {"count": 3}), "computed.a").inputs == {"count": 3}
    status = CORE.explain(domain, first(domain), "system.status")
    assert (status.value, status.inputs, status.trace.inputs) == ("idle", {}, {"path": "system.status"})
