"""A program of flow domains alone, for tests of worlds: orders that are paid by an effect, and a to-do document."""

from __future__ import annotations

from typing import Any

import pytest

import worldline as wl
from tests.flow_core.documents import document, field, get, lit, op, put
from worldline import flow
from worldline.flow import x
from worldline.flow_core import core as cores
from worldline.flow_core import patches

TODOS = document(
    {
        "add": {
            "flow": put("list", {"kind": "append", "array": get("list"), "items": [get("input.title")]}),
            "input": {"type": "object", "required": True, "fields": {"title": {"type": "string", "required": True}}},
        },
        "clear": {"flow": put("list", lit([])), "available": op("gt", get("list.length"), lit(0))},
    },
    {"list": field("array", [])},
)


class Order(flow.Domain):
    """An order."""

    cents: int = 0
    receipt: str | None = None
    refused: flow.Error | None = None

    @flow.computed
    def paid(self) -> bool:
        return x.not_null(self.receipt)

    @flow.action
    def fill(self, cents: int) -> None:
        self.cents = cents

    @flow.action
    def pay(self, card: str) -> None:
        """Pay the order."""
        flow.available(self.cents > 0)
        flow.perform(flow.ask("charge", card=card, cents=self.cents), into=self.receipt, fail=self.refused)


class Order2(flow.Domain):
    """One field more, and it says which version paid."""

    cents: int = 0
    receipt: str | None = None
    refused: flow.Error | None = None
    note: str = "new"

    @flow.action
    def fill(self, cents: int) -> None:
        self.cents = cents

    @flow.action
    def pay(self, card: str) -> None:
        flow.perform(flow.ask("charge", card=card, cents=self.cents), into=self.receipt, fail=self.refused)
        self.note = "paid by the second version"


class Order3(flow.Domain):
    """Cents are text: what orders have does not fit."""

    cents: str = ""
    receipt: str | None = None

    @flow.action
    def fill(self, cents: str) -> None:
        self.cents = cents


class Shop:
    """A program, made anew, with its declarations."""

    def __init__(self, version: int = 1, *, attempts: int = 1) -> None:
        self.app = app = wl.Program("shop")

        @app.effect(timeout=10, total_timeout=60, retry=wl.Retry(attempts=attempts))
        async def charge(card: str, cents: int) -> str:
            return f"{cents} from {card}"

        self.charge = charge
        self.todos = app.domain(TODOS, name="Todos")
        self.order = app.domain(keyed=True, name="Order")((Order, Order2, Order3)[version - 1])


def without_charge() -> Shop:
    """A shop whose effect no process has."""
    shop = Shop()
    del shop.app.effects["charge"]
    return shop


def break_clearing(monkeypatch: pytest.MonkeyPatch, *, cents: int) -> None:
    """No requirement of an order of so many cents can be cleared any more: its cell becomes fatal."""
    apply = cores.Core.apply

    def broken(self: Any, schema: Any, head: Any, given: Any, context: Any) -> Any:
        if any(each.path == patches.CLEAR for each in given) and head.data["cents"] == cents:
            raise RuntimeError("disk full")
        return apply(self, schema, head, given, context)

    monkeypatch.setattr(cores.Core, "apply", broken)
