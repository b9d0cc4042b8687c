"""A hypothesis machine per domain: it finds what is wrong in a domain, and in the host that runs it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import Phase, settings, stateful

import worldline as wl
from tests import aio
from tests.flow.documents import HALT, document, effect, field, get, lit, once, op, put, when
from worldline import flow, testing
from worldline.base import errors
from worldline.flow import x
from worldline.kernel.flow import core

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


def check(machine: type[Any], examples: int = 25) -> None:
    limits = settings(
        max_examples=examples, stateful_step_count=8, deadline=None, database=None, derandomize=True,
        phases=[Phase.generate],
    )  # fmt: skip
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
        "type": "object", "required": True,
        "fields": {"on": {"type": "boolean", "required": True}, "no": {"type": "null", "required": True},
                   "any": {"type": "object", "required": True}, "all": {"type": "array", "required": True},
                   "never": {"type": {"enum": []}, "required": True}},
    }  # fmt: skip
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
