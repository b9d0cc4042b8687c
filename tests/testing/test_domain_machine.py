"""A hypothesis machine per domain: it finds what is wrong in a domain, and in the host that runs it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import Phase, settings, stateful

import worldline as wl
from tests import aio
from tests.flow_core.documents import HALT, document, effect, field, get, lit, once, op, put, when
from worldline import flow, testing
from worldline.base import errors
from worldline.flow import x
from worldline.flow_core import core

app = wl.Program("shop")


@app.effect(timeout=10)
async def charge(card: str, cents: float) -> str:
    return card


@dataclass
class Line:
    name: str
    cents: int


class Order(flow.Domain):
    lines: list[Line] = []  # noqa: RUF012
    cents: int = 0
    state: Literal["open", "paid"] = "open"
    receipt: str | None = None
    refused: flow.Error | None = None

    @flow.computed
    def paid(self) -> bool:
        return x.not_null(self.receipt)

    @flow.action
    def add(self, line: Line, count: int = 1) -> None:
        flow.available(x.eq(self.state, "open"))
        flow.available(line.cents > 0)
        self.lines = x.append(self.lines, line)
        self.cents = self.cents + line.cents

    @flow.action
    def pay(self, card: str) -> None:
        flow.available(self.cents > 0)
        flow.perform(charge(card, self.cents), into=self.receipt, fail=self.refused)
        with flow.when(self.paid):
            self.state = "paid"


app.domain(keyed=True)(Order)
TODOS = app.domain(
    document(
        {"ask": once("answer", "charge", card=lit("c"), cents=lit(1), into=lit("answer"))}, {"answer": field("string")}
    ),
    name="Todos",
    effects="parallel",
)


def check(machine: type[Any], examples: int = 25) -> None:
    limits = settings(
        max_examples=examples,
        stateful_step_count=8,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
    )
    stateful.run_state_machine_as_test(machine, settings=limits)


def paid_has_receipt(order: Order) -> bool:
    return order.state != "paid" or order.receipt is not None


def test_a_domain_that_holds() -> None:
    check(testing.domain_machine(Order, invariants=[paid_has_receipt]))


def test_a_wrong_invariant_is_found() -> None:
    def never_paid(order: Order) -> None:
        assert order.state == "open"

    def never_refused(order: Order) -> bool:
        return order.refused is None

    with pytest.raises(AssertionError):
        check(testing.domain_machine(Order, invariants=[never_paid]), 100)
    with pytest.raises(AssertionError, match="never_refused does not hold"):
        check(testing.domain_machine(Order, invariants=[never_refused]), 100)


def test_scripts_and_handlers_answer() -> None:
    def receipts(order: Order) -> bool:
        return order.receipt in (None, "r-1") and order.refused is None

    def refused(order: Order) -> bool:
        return order.receipt is None

    check(testing.domain_machine(Order, script=wl.Script().on(charge, "r-1"), invariants=[receipts]))
    check(testing.domain_machine(Order, script=wl.Script().on(charge, ConnectionError("down")), invariants=[refused]))
    handlers = {"charge": flow.answering(lambda card, cents: "r-1")}
    check(testing.domain_machine(Order, handlers=handlers, invariants=[receipts]))
    with pytest.raises(errors.BadInput, match="no time passes"):
        testing.domain_machine(Order, script=wl.Script().on(charge, wl.Script.never()))


def test_scripts_answer_standalone_hosts() -> None:
    async def main() -> list[Any]:
        script = wl.Script().on(charge, ConnectionError("down"), lambda card, cents: f"{card}:{cents:g}")
        host = flow.Host(Order, data={"cents": 5})
        host.register("charge", testing.scripted(script)["charge"])
        first = await host.act(Order.pay("tok"), key="a")
        second = await host.act(Order.pay("tok"), key="b")
        return [first.snapshot.data["refused"], second.snapshot.data["receipt"]]

    refused, receipt = aio.run(main())
    assert (refused["message"], receipt) == ("ConnectionError: down", "tok:5")


def test_documents_of_every_shape() -> None:
    taken = {
        "type": "object",
        "required": True,
        "fields": {
            "on": {"type": "boolean", "required": True},
            "no": {"type": "null", "required": True},
            "any": {"type": "object", "required": True},
            "all": {"type": "array", "required": True},
            "never": {"type": {"enum": []}, "required": True},
        },
    }
    made = document(
        {
            "set it": {"flow": put("count", lit(1)), "input": taken},
            "ask-it": once("answer", "ask", into=lit("answer")),
            "other": when(op("isNull", get("answer")), effect("tell")),
            "nothing": HALT,
        },
        {"answer": field("number")},
    )
    check(testing.domain_machine(made, invariants=[lambda head: head.data["count"] in (0, 1)]))


def test_data_that_does_not_fit_is_found() -> None:
    with pytest.raises(AssertionError, match="cents must be number"):
        check(testing.domain_machine(Order, data={"cents": "many"}), 50)


def test_a_refusal_that_core_does_not_foresee_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(core.Core, "refusal", lambda *_: None)
        with pytest.raises(AssertionError, match="was not to be refused"):
            check(testing.domain_machine(Order), 50)
    with monkeypatch.context() as patched:
        patched.setattr(core.Core, "refusal", lambda *_: core.Refusal("OTHER", "said"))
        with pytest.raises(AssertionError, match=r"refused with OTHER|not OTHER"):
            check(testing.domain_machine(Order), 50)


def test_a_trace_that_does_not_replay_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "replay", lambda domain, first, events: first)
    with pytest.raises(AssertionError, match="a replay of the trace comes out otherwise"):
        check(testing.domain_machine(Order), 50)


def test_without_hypothesis_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(errors.BadInput, match="pip install hypothesis"):
        testing.domain_machine(Order)


# --- In worlds -------------------------------------------------------------------------------------------------------


def test_a_domain_that_holds_in_a_world() -> None:
    check(testing.domain_machine(Order, program=app, invariants=[paid_has_receipt]), 12)
    check(testing.domain_machine(TODOS, program=app, invariants=[lambda head: "answer" in head.data]), 5)


def test_a_wrong_invariant_is_found_in_a_world() -> None:
    def never_paid(order: Order) -> bool:
        return order.state == "open"

    def never_refused(order: Order) -> bool:
        return order.refused is None

    for wrong in (never_paid, never_refused):
        with pytest.raises(AssertionError, match=f"{wrong.__name__} does not hold"):
            check(testing.domain_machine(Order, program=app, invariants=[wrong]), 100)


def test_a_script_answers_in_a_world_and_time_passes() -> None:
    def timed_out(order: Order) -> bool:
        return order.receipt is None and (order.refused is None or order.refused.code == "EFFECT_TIMEOUT")

    script = wl.Script().on(charge, wl.Script.never())
    check(testing.domain_machine(Order, program=app, script=script, invariants=[timed_out], data={"cents": 5}), 12)
    with pytest.raises(AssertionError, match="timed_out does not hold"):
        check(testing.domain_machine(Order, program=app, invariants=[timed_out], data={"cents": 5}), 50)


def test_a_call_that_an_effect_does_not_take_is_found_in_a_world() -> None:
    """In production such an effect is parked, and its intent does not end."""
    narrow = wl.Program("narrow")

    async def whole(card: str, cents: int) -> str:
        return card

    narrow.effect(name="charge")(whole)
    narrow.domain(keyed=True)(Order)
    with pytest.raises(AssertionError, match="an effect does not take what it is called with"):
        check(testing.domain_machine(Order, program=narrow, data={"cents": 0.5}), 50)


def test_a_world_that_comes_back_otherwise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(world: testing.TestWorld) -> None:
        world.patch(Order, [flow.set("cents", 7)], key="one")

    with monkeypatch.context() as patched:
        patched.setattr(testing.TestWorld, "crash", forgets)
        with pytest.raises(AssertionError, match="comes back from its journal with another snapshot"):
            check(testing.domain_machine(Order, program=app))
    with monkeypatch.context() as patched:
        patched.setattr(testing.TestWorld, "fork", lambda world, at: world)
        with pytest.raises(AssertionError, match="a fork at height"):
            check(testing.domain_machine(Order, program=app))
    with monkeypatch.context() as patched:
        proved: list[int] = []
        prove = testing.TestWorld.prove
        patched.setattr(testing.TestWorld, "prove", lambda world: proved.append(prove(world)))
        check(testing.domain_machine(Order, program=app), 3)
        assert len(proved) == 3


def test_what_does_not_go_together_with_a_world() -> None:
    other = wl.Program("other")
    for wrong, said in (
        ({"program": other}, "program 'other' has no flow domain 'Order'"),
        ({"program": app, "handlers": {"charge": flow.answering(lambda card, cents: "r")}}, "answered by a script"),
    ):
        with pytest.raises(errors.BadInput, match=said):
            testing.domain_machine(Order, **wrong)
    with pytest.raises(errors.BadInput, match="its class, or what"):
        testing.domain_machine(Order.document(), program=app)
    other.domain(keyed=True)(Order)
    with pytest.raises(errors.BadInput, match="no effect 'charge', which Order asks for"):
        testing.domain_machine(Order, program=other)
