"""A program with a flow domain, as the tests of `act`, `explain`, `trace`, `abandon` and `patch` host it."""

from __future__ import annotations

import asyncio

import worldline as wl
from worldline import flow

app = wl.Program("orders")


@app.effect
async def charge(card: str, cents: int) -> str:
    if card == "never":
        await asyncio.Event().wait()
    return f"{cents} from {card}"


@app.domain(keyed=True)
class Order(flow.Domain):
    cents: int = 0
    receipt: str | None = None

    @flow.action
    def fill(self, cents: int) -> None:
        self.cents = cents

    @flow.action
    def pay(self, card: str) -> None:
        flow.available(self.cents > 0)
        flow.perform(charge(card, self.cents), into=self.receipt)
