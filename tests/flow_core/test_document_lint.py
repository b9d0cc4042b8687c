"""What is valid in a document and hardly meant: each rule finds its plain case, and lets what is right alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.flow_core.documents import HALT, effect, field, get, lit, loaded, once, op, put, seq, when
from worldline import flow
from worldline.flow import x
from worldline.flow_core import document_schema
from worldline.flow_core.analysis import document_lint, reads

FIELDS = {
    "answer": field("string"),
    "marker": field("string"),
    "items": field("array"),
    "more": field("array"),
    "owner": field("object", fields={"name": field("string")}),
    "open": field("object"),
}
ASK = effect("ask", into=lit("answer"))
EMPTY = op("isNull", get("answer"))
MARK = put("marker", get("meta.intentId"))
ONCE = op("neq", get("marker"), get("meta.intentId"))
BUMP = put("count", op("add", get("count"), lit(1)))
BUMP_MARKER = put("marker", lit("m"))
DOUBLE = put("more", {"kind": "append", "array": get("more"), "items": [get("computed.doubled")]})


def found(actions: dict[str, Any], computed: Any = None) -> list[tuple[str, str]]:
    every = document_lint.lint(loaded(actions, FIELDS, computed))
    assert all(each.what and each.instead for each in every)
    return [(each.rule, each.path) for each in every]


UNGUARDED = {
    "bare": (ASK, ".flow"),
    "in a sequence": (seq(BUMP, ASK), ".flow.steps[1]"),
    "behind its input": (when(get("input.x"), ASK), ".flow.then"),
    "behind what it does not change": (when(op("gt", get("count"), lit(0)), ASK), ".flow.then"),
    "behind a condition that does not end the flow": (seq(when(EMPTY, BUMP), ASK), ".flow.steps[1]"),
    "without a target": (effect("ask"), ".flow"),
}


@pytest.mark.parametrize(("body", "place"), UNGUARDED.values(), ids=UNGUARDED)
def test_an_effect_without_a_guard_is_found(body: Any, place: str) -> None:
    taken = {"type": "object", "required": True, "fields": {"x": field("boolean", False)}}
    assert found({"go": {"flow": body, "input": taken}}) == [("unguarded", f"actions.go{place}")]


def test_a_condition_of_the_action_is_no_guard() -> None:
    assert found({"go": {"flow": ASK, "available": EMPTY}}) == [("unguarded", "actions.go.flow")]


GUARDED = {
    "by its answer": once("answer", "ask", into=lit("answer")),
    "by its failure": when(op("isNull", get("open")), effect("ask", into=lit("answer"), fail=lit("open"))),
    "once": when(ONCE, seq(MARK, ASK)),
    "otherwise": when(op("not", EMPTY), HALT, ASK),
    "by an earlier end": seq(when(op("not", EMPTY), HALT), ASK),
    "by an earlier failure": seq(when(EMPTY, seq(), {"kind": "fail", "code": "no"}), ASK),
    "by a computed value": when(get("computed.known"), ASK),
    "by a member": when(op("isNull", get("owner.name")), effect("ask", into=lit("owner"))),
    "without a target, by any field": when(op("gt", get("count"), lit(0)), effect("ask")),
    "by what the flow writes, in an action that it calls": when(ONCE, seq({"kind": "call", "flow": "mark"}, ASK)),
    "evaluated in place": effect("array.map", source=get("items"), select=get("$item"), into=lit("more")),
}


@pytest.mark.parametrize("body", GUARDED.values(), ids=GUARDED)
def test_an_effect_with_a_guard_is_not(body: Any) -> None:
    known = {"computed.known": {"deps": ["answer"], "expr": EMPTY}}
    assert found({"go": body, "mark": MARK}, known) == []


def test_an_effect_whose_field_is_never_null_is_found() -> None:
    asked = effect("ask", into=lit("count"))
    body = seq(BUMP_MARKER, when(op("and", op("isNull", get("count")), EMPTY), asked))
    assert found({"go": body}) == [("never", "actions.go.flow.steps[1]")]
    cleared = {"kind": "patch", "op": "unset", "path": "count"}
    assert found({"go": body, "clear": cleared}) == []
    assert found({"go": when(EMPTY, effect("ask", into=lit("answer")))}) == []


STALE = {
    "patched before": (seq(BUMP, DOUBLE), ".flow.steps[1].value"),
    "in a condition": (seq(BUMP, when(op("gt", get("computed.doubled"), lit(1)), HALT)), ".flow.steps[1].cond"),
    "patched in a branch": (seq(when(EMPTY, BUMP), DOUBLE), ".flow.steps[1].value"),
    "read in a call": (seq(BUMP, {"kind": "call", "flow": "read"}), ".flow.steps[1]"),
    "patched in a call": (seq({"kind": "call", "flow": "bump"}, DOUBLE), ".flow.steps[1].value"),
}


@pytest.mark.parametrize(("body", "place"), STALE.values(), ids=STALE)
def test_a_computed_value_that_is_read_too_early_is_found(body: Any, place: str) -> None:
    assert found({"go": body, "read": DOUBLE, "bump": BUMP}) == [("stale", f"actions.go{place}")]


@pytest.mark.parametrize(
    "body",
    [
        seq(DOUBLE, BUMP),
        seq(put("answer", lit("a")), DOUBLE),
        when(EMPTY, BUMP, DOUBLE),
        seq(when(EMPTY, seq(BUMP, HALT)), DOUBLE),
    ],
    ids=["read before", "another field", "another branch", "behind an end"],
)
def test_one_that_is_not_read_too_early_is_not(body: Any) -> None:
    assert found({"go": body}) == []


def test_dependencies_of_dependencies_count_and_inline_effects_write() -> None:
    computed = {
        "computed.size": {"deps": ["items"], "expr": op("len", get("items"))},
        "computed.twice": {"deps": ["computed.size"], "expr": op("mul", get("computed.size"), lit(2))},
    }
    inline = effect("array.map", source=get("more"), select=get("$item"), into=lit("items"))
    assert found({"go": seq(inline, put("count", get("computed.twice")))}, computed) == [
        ("stale", "actions.go.flow.steps[1].value")
    ]


@pytest.mark.parametrize(
    "condition",
    [
        op("eq", get("items"), lit([])),
        op("neq", get("items"), get("more")),
        op("eq", {"kind": "keys", "obj": get("open")}, get("open")),
        op("not", op("eq", get("owner"), get("input.who"))),
        op("eq", get("computed.all"), get("count")),
        op("eq", lit({}), get("open")),
    ],
)
def test_comparing_containers_is_found(condition: Any) -> None:
    taken = {"type": "object", "required": True, "fields": {"who": field("object")}}
    computed = {"computed.all": {"deps": ["items"], "expr": {"kind": "reverse", "array": get("items")}}}
    body = when(condition, HALT)
    assert [rule for rule, _ in found({"go": {"flow": body, "input": taken}}, computed)] == ["containers"]
    assert [rule for rule, _ in found({"go": {"flow": HALT, "input": taken, "available": condition}}, computed)] == [
        "containers"
    ]


@pytest.mark.parametrize(
    "condition",
    [
        op("eq", get("items"), lit(None)),
        op("eq", get("count"), lit(1)),
        op("eq", get("owner.name"), lit("ada")),
        op("eq", op("len", get("items")), lit(0)),
        op("eq", get("open"), get("count")),
    ],
)
def test_comparing_other_values_is_not(condition: Any) -> None:
    assert found({"go": when(condition, HALT)}) == []


def test_classes_guard_their_effects_themselves() -> None:
    class Order(flow.Domain):
        cents: int = 0
        tries: int = 0
        tags: list[str] = []  # noqa: RUF012
        receipt: str | None = None
        marker: str | None = None

        @flow.computed
        def paid(self) -> bool:
            return x.not_null(self.receipt)

        @flow.action
        def pay(self) -> None:
            flow.perform(flow.ask("charge"), into=self.receipt)
            with flow.when(self.paid):
                self.cents = 0

        @flow.action
        def retry(self) -> None:
            with flow.once(self.marker):
                self.tries = self.tries + 1

    assert document_lint.lint(flow.load(Order.document())) == []


def test_called_actions_are_walked_once_and_not_for_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[str] = []
    whole = reads.called

    def called(parsed: document_schema.DomainSchema, name: str) -> list[document_schema.ActionSpec]:
        walked.append(name)
        return whole(parsed, name)

    monkeypatch.setattr(reads, "called", called)
    many, calls = seq(*[BUMP] * 500), seq(*[{"kind": "call", "flow": "many"}] * 500)
    assert found({"many": many, "calls": calls}) == []
    assert walked == ["many", "many"], "what is written anywhere, and what is patched so far"
