"""`flow.explore`: reachable states, actions that never run, states that nothing leaves; bounded and deterministic."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from msgspec import UNSET

from tests.flow_core.documents import HALT, effect, field, get, lit, loaded, once, op, put, seq, when
from worldline import flow
from worldline.base import errors
from worldline.flow import x


class Order(flow.Domain):
    state: Literal["open", "paid", "shipped"] = "open"
    cents: int = 0
    receipt: str | None = None
    refused: flow.Error | None = None

    @flow.computed
    def paid(self) -> bool:
        return x.not_null(self.receipt)

    @flow.action
    def price(self, cents: int) -> None:
        flow.available(x.eq(self.state, "open"))
        flow.available(x.is_null(self.refused))
        flow.available(cents > 10)
        self.cents = 11

    @flow.action
    def pay(self) -> None:
        flow.available(self.cents > 0)
        flow.available(x.eq(self.state, "open"))
        flow.available(x.is_null(self.refused))
        flow.perform(flow.ask("charge"), into=self.receipt, fail=self.refused)
        with flow.when(self.paid):
            self.state = "paid"

    @flow.action
    def ship(self) -> None:
        flow.available(x.eq(self.state, "paid"))
        self.state = "shipped"

    @flow.action
    def refund(self) -> None:
        flow.available(x.eq(self.state, "sent"))
        self.state = "open"


def test_dead_actions_and_stuck_states_with_the_shortest_way() -> None:
    found = flow.explore(Order, answers={"charge": ["r", flow.Failure("NO", "declined")]})
    assert found.complete
    assert [(each.action, each.reasons) for each in found.dead] == [
        ("refund", tuple(f'state = "sent" is false (state = "{each}")' for each in ("open", "paid")))
    ]
    assert found.failing == ()
    refused, shipped = found.stuck
    assert (shipped.data["state"], [each.action for each in shipped.trail]) == ("shipped", ["price", "pay", "ship"])
    assert refused.data["refused"] == {"code": "NO", "message": "declined"}
    assert refused.trail[1] == flow.Step("pay", UNSET, (("charge", flow.Failure("NO", "declined")),))
    assert found.states == 5


def test_inputs_come_from_literals_of_the_document() -> None:
    """`price` needs more than 10: that 11 is tried is what makes anything reachable."""
    found = flow.explore(Order, inputs={"price": [{"cents": 10}]})
    assert [each.action for each in found.dead] == ["price", "pay", "ship", "refund"]
    assert found.states == 1
    assert [each.action for each in flow.explore(Order).dead] == ["refund"]


def test_final_states_are_not_stuck() -> None:
    found = flow.explore(Order, final=lambda head: head.data["state"] == "shipped")
    assert [each.data["state"] for each in found.stuck] == ["open"]


def test_the_same_arguments_give_the_same_answer() -> None:
    assert flow.explore(Order) == flow.explore(Order)


COUNT = {"add": put("count", op("add", get("count"), lit(1)))}


def test_bounds_make_it_incomplete() -> None:
    endless = loaded(COUNT)
    deep = flow.explore(endless, depth_max=5)
    assert (deep.states, deep.complete) == (6, False)
    wide = flow.explore(endless, states_max=3)
    assert (wide.states, wide.complete) == (3, False)
    ends = loaded({"add": {"flow": COUNT["add"], "available": op("lt", get("count"), lit(3))}})
    whole = flow.explore(ends)
    assert (whole.states, whole.complete, [each.data for each in whole.stuck]) == (4, True, [{"count": 3}])


def test_data_is_where_it_begins() -> None:
    ends = loaded({"add": {"flow": COUNT["add"], "available": op("lt", get("count"), lit(3))}})
    assert flow.explore(ends, data={"count": 2}).states == 2


def test_an_action_that_always_fails_is_told_from_one_that_is_refused() -> None:
    domain = loaded(
        {
            "fails": {"kind": "fail", "code": "no", "message": lit("never")},
            "loops": effect("ask"),
            "lives": HALT,
        }
    )
    found = flow.explore(domain)
    assert (found.dead, found.complete) == ((), True)
    assert [(each.action, [said.partition(":")[0] for said in each.reasons]) for each in found.failing] == [
        ("fails", ["VALIDATION_ERROR"]),
        ("loops", ["EFFECT_REPEATED", "LOOP_MAX_ITERATIONS"]),
    ]


def test_ids_of_intents_in_the_data_do_not_make_states() -> None:
    marked = when(
        op("neq", get("marker"), get("meta.intentId")), seq(put("marker", get("meta.intentId")), put("count", lit(1)))
    )
    found = flow.explore(loaded({"go": marked}, {"marker": field("string", "")}))
    assert (found.states, found.complete) == (2, True)


def test_answers_are_values_failures_or_patches() -> None:
    ask = seq(once("answer", "ask", into=lit("answer")))
    domain = loaded({"go": {"flow": ask, "available": op("isNull", get("answer"))}}, {"answer": field("string")})

    def states(*answers: Any) -> list[Any]:
        return [each.data["answer"] for each in flow.explore(domain, answers={"ask": answers}).stuck]

    assert states("x", "y") == ["x", "y"]
    assert states([flow.set("answer", "patched")]) == ["patched"]
    assert states(flow.Failure("NO", "no")) == []
    assert [each.data["answer"] for each in flow.explore(domain).stuck] == ["a", ""]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": {"nothing": []}}, "no action 'nothing'; there are price, pay, ship, refund"),
        ({"answers": {"nothing": []}}, "no effect 'nothing'; there are charge"),
        ({"states_max": 0}, "states_max is at least 1"),
        ({"depth_max": -1}, "states_max is at least 1"),
    ],
)
def test_wrong_arguments_are_refused(options: Any, message: str) -> None:
    with pytest.raises(errors.BadInput, match=message):
        flow.explore(Order, **options)


def test_deep_inputs_are_sampled() -> None:
    taken = {
        "type": "object",
        "required": True,
        "fields": {
            "kind": {"type": {"enum": ["a", "b"]}, "required": True},
            "lines": {
                "type": "array",
                "required": True,
                "items": {"type": "object", "required": True, "fields": {"on": {"type": "boolean", "required": True}}},
            },
            "note": {"type": "null", "required": False, "default": None},
            "any": {"type": "object", "required": True},
            "never": {"type": {"enum": []}, "required": False, "default": None},
        },
    }
    body = when(op("eq", get("input.kind"), lit("b")), put("count", lit(2)))
    found = flow.explore(loaded({"go": {"flow": body, "input": taken}}))
    assert (found.states, found.complete, found.dead, found.failing) == (2, True, (), ())
