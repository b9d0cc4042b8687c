"""Domains in other forms: tools in three shapes and why the rest cannot be called, OpenAPI, Mermaid."""

from __future__ import annotations

from typing import Any, get_args

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.flow_core.documents import HALT, document, effect, field, first, get, lit, loaded, op, put, seq, when
from worldline import flow
from worldline.base import errors
from worldline.flow import x
from worldline.flow_core import js_values, validation
from worldline.flow_core.exporting import tools as exports


class Order(flow.Domain):
    """An order."""

    cents: int = 0
    receipt: str | None = None

    @flow.computed
    def paid(self) -> bool:
        return x.not_null(self.receipt)

    @flow.action
    def add(self, name: str, cents: int = 1) -> None:
        """Add a thing."""
        flow.available(x.is_null(self.receipt))
        self.cents = self.cents + cents

    @flow.action
    def pay(self, card: str) -> None:
        """Pay for it."""
        flow.available(self.cents > 0)
        flow.available(x.not_(self.paid))
        flow.perform(flow.ask("charge", card=card), into=self.receipt)


ORDER = flow.load(Order.document())

ADD = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},  # it is required: null is not offered
        "cents": {"type": ["number", "null"], "default": 1},
    },
    "required": ["name"],
    "additionalProperties": False,
}


def test_three_shapes() -> None:
    head = first(ORDER)
    said = {"name": "add", "description": "Add a thing."}
    assert flow.tools(ORDER, head, shape="openai").documents == [
        {"type": "function", "function": {**said, "parameters": ADD}}
    ]
    assert flow.tools(ORDER, head, shape="anthropic").documents == [{**said, "input_schema": ADD}]
    assert flow.tools(ORDER, head, shape="mcp").documents == [{**said, "inputSchema": ADD}]
    with pytest.raises(errors.BadInput, match="openai, anthropic, mcp"):
        flow.tools(ORDER, head, shape="other")  # type: ignore[arg-type]
    assert get_args(exports.Shape) == exports.SHAPES


def test_the_rest_comes_with_reasons() -> None:
    found = flow.tools(ORDER, first(ORDER), shape="mcp")
    assert [(each.action, each.code, each.reasons) for each in found.unavailable] == [
        ("pay", "ACTION_UNAVAILABLE", ("cents > 0 is false (cents = 0)",))
    ]
    full = flow.tools(ORDER, first(ORDER, {"cents": 5}), shape="mcp")
    assert [each.action for each in full.available] == ["add", "pay"]
    assert full.unavailable == ()
    done = flow.tools(ORDER, first(ORDER, {"cents": 5, "receipt": "r"}), shape="mcp")
    assert [each.reasons for each in done.unavailable] == [
        ('receipt is empty is false (receipt = "r")',),
        ("not computed.paid is false (computed.paid = true)",),
    ]


def test_a_call_becomes_an_action_and_its_input() -> None:
    found = flow.tools(ORDER, first(ORDER), shape="openai")
    assert found.call("add", {"name": "tea"}) == ("add", {"name": "tea"})
    with pytest.raises(errors.BadInput, match="pay cannot be called now: cents > 0 is false"):
        found.call("pay", {"card": "c"})
    with pytest.raises(errors.BadInput, match="no tool 'sell'; there are add"):
        found.call("sell")


def test_parts_of_a_condition_that_read_the_input_do_not_decide() -> None:
    taken = {"type": "object", "required": True, "fields": {"by": field("number", required=True)}}
    positive, small = op("gt", get("input.by"), lit(0)), op("lt", get("count"), lit(3))
    flows = put("count", op("add", get("count"), get("input.by")))
    unknown = op("neq", get("name"), get("meta.intentId"))
    domain = loaded(
        {
            "both": {"flow": flows, "input": taken, "available": op("and", positive, small)},
            "input alone": {"flow": flows, "input": taken, "available": positive},
            "either": {"flow": flows, "input": taken, "available": op("or", positive, small)},
            "once": {"flow": HALT, "available": op("and", unknown, small)},
        },
        {"name": field("string", "")},
    )
    low, high = first(domain), first(domain, {"count": 3})
    assert [each.action for each in flow.tools(domain, low, shape="mcp").available] == list(domain.schema.actions)
    closed = flow.tools(domain, high, shape="mcp").unavailable
    assert [(each.action, each.reasons) for each in closed] == [
        ("both", ("count < 3 is false (count = 3)",)),
        ("once", ("count < 3 is false (count = 3)",)),
    ]


def test_a_condition_that_is_no_boolean_and_computed_values_that_fail_are_reasons_too() -> None:
    odd = loaded({"odd": {"flow": HALT, "available": get("count")}})
    (said,) = flow.tools(odd, first(odd), shape="mcp").unavailable
    assert (said.code, said.reasons) == ("TYPE_MISMATCH", ())
    broken = {"computed.x": {"deps": ["count"], "expr": op("mul", get("count"), lit("Infinity"))}}
    domain = loaded({"go": HALT}, computed=broken)
    (failed,) = flow.tools(domain, first(domain, {"count": 1}), shape="mcp").unavailable
    assert (failed.code, failed.message.partition(":")[0]) == ("INVALID_VALUE", "computed.x")


def test_what_is_no_action_is_unavailable() -> None:
    missing = flow.Core().unavailable(ORDER, first(ORDER), "nothing")
    assert missing is not None
    assert missing.code == "UNKNOWN_ACTION"


def test_names_are_names_of_tools_and_stay() -> None:
    long = "l" * 70
    actions = {"do it": HALT, "do_it": HALT, "do.it": HALT, long: HALT, long + "x": HALT, "é": HALT}
    domain = loaded(actions)
    names = exports.tool_names(domain.schema)
    assert names == {
        "do it": "do_it_2",
        "do_it": "do_it",
        "do.it": "do_it_3",
        long: "l" * 64,
        long + "x": "l" * 62 + "_2",
        "é": "_",
    }
    found = flow.tools(domain, first(domain), shape="openai")
    assert found.call("do_it_3") == ("do.it", js_values.MISSING)


@given(st.lists(st.text(min_size=1, max_size=80).filter(lambda name: name != "__proto__"), min_size=1, unique=True))
def test_any_actions_get_names_of_their_own(actions: list[str]) -> None:
    parsed = validation.load_unchecked(document(dict.fromkeys(actions, HALT))).schema
    names = exports.tool_names(parsed)
    assert list(names) == actions
    assert len(dict.fromkeys(names.values())) == len(actions)
    assert all(0 < len(name) <= 64 and name.isascii() for name in names.values())


def test_every_parameter_is_an_object() -> None:
    text = {"type": "string", "required": True}
    domain = loaded(
        {
            "nothing": HALT,
            "undeclared": put("name", get("input.name")),
            "calls": {"kind": "call", "flow": "undeclared"},
            "open": {"flow": HALT, "input": {"type": "object", "required": True}},
            "text": {"flow": put("name", get("input")), "input": text},
        },
        {"name": field("string", "")},
    )
    found = flow.tools(domain, first(domain), shape="anthropic")
    parameters = {each.action: each.document["input_schema"] for each in found.available}
    closed = {"type": "object", "properties": {}, "additionalProperties": False}
    assert parameters == {
        "nothing": closed,
        "undeclared": {"type": "object"},
        "calls": {"type": "object"},
        "open": {"type": "object"},
        "text": {
            "type": "object",
            "properties": {"input": {"type": "string"}},
            "required": ["input"],
            "additionalProperties": False,
        },
    }
    assert found.call("text", {"input": "x"}) == ("text", "x")
    assert found.call("open", {"a": 1}) == ("open", {"a": 1})


def test_openapi_says_every_action_and_refers_to_what_is_there() -> None:
    said = flow.openapi(ORDER.schema)
    assert list(said["paths"]) == ["/state", "/actions/add", "/actions/pay"]
    pay = said["paths"]["/actions/pay"]["post"]
    assert pay["operationId"] == "act-pay"
    assert pay["description"] == "Pay for it."
    body = pay["requestBody"]["content"]["application/json"]["schema"]
    assert jsonschema.Draft202012Validator(body).is_valid({"card": "c"})
    assert not jsonschema.Draft202012Validator(body).is_valid({})
    assert said["info"]["description"] == "An order."
    for name, each in said["components"]["schemas"].items():
        jsonschema.Draft202012Validator.check_schema(each)
        assert f'"#/components/schemas/{name}"' in str(said).replace("'", '"')
    state = jsonschema.Draft202012Validator(said["components"]["schemas"]["State"])
    assert state.is_valid({"data": {"cents": 1}, "computed": {"computed.paid": False}})
    assert not state.is_valid({"data": {"cents": "1"}, "computed": {}})


def test_openapi_quotes_names_and_keeps_operations_apart() -> None:
    domain = loaded({"a/b": HALT, "a?b": HALT})
    said = flow.openapi(domain.schema)
    assert list(said["paths"]) == ["/state", "/actions/a%2Fb", "/actions/a%3Fb"]
    ids = [each["post"]["operationId"] for each in list(said["paths"].values())[1:]]
    assert ids == ["act-a_b", "act-a_b_2"]


def test_mermaid_shows_what_depends_on_what() -> None:
    assert flow.mermaid(ORDER.schema).splitlines() == [
        "flowchart LR",
        '    f0["cents"]',
        '    f1["receipt"]',
        '    c2(["computed.paid"])',
        '    a3[["add"]]',
        '    a4[["pay"]]',
        '    e5{{"charge"}}',
        "    f1 --> c2",
        "    f1 -. available .-> a3",
        "    a3 --> f0",
        "    f0 -. available .-> a4",
        "    c2 -. available .-> a4",
        "    a4 -- effect --> e5",
        "    e5 --> f1",
    ]


def test_mermaid_takes_any_name() -> None:
    quote = 'say "hi" <b>'
    calls: Any = {"kind": "call", "flow": quote}
    domain = loaded({quote: HALT, "other": seq(calls, when(lit(True), effect("e")))})
    lines = flow.mermaid(domain.schema).splitlines()
    assert '    a2[["say #34;hi#34; #60;b#62;"]]' in lines
    assert "    a3 -- call --> a2" in lines
