"""An agent that chooses among the tools of a domain: only what can be done now is offered, with reasons for the rest.

    python examples/agent_tools.py

The order is a class. At every turn its actions become tools in the shape that a model's interface takes; the model
chooses one, and its choice becomes an intent. Here a scripted chooser stands for the model, so no network is needed: it
wants to ship first, is told why it cannot, and finds its way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

from worldline import flow
from worldline.flow import x

Choice = tuple[str, dict[str, Any]]
Chooser = Callable[[flow.Tools], Choice | None]
TURNS_MAX = 10


class Order(flow.Domain):
    """An order of a small shop."""

    lines: list[str] = []  # noqa: RUF012 - a default of the document
    cents: int = 0
    state: Literal["open", "paid", "shipped"] = "open"
    receipt: str | None = None

    @flow.computed
    def paid(self) -> bool:
        """Whether there is a receipt."""
        return x.not_null(self.receipt)

    @flow.action
    def add(self, name: str, cents: int) -> None:
        """Put a thing into the order."""
        flow.available(x.eq(self.state, "open"))
        self.lines = x.append(self.lines, name)
        self.cents = self.cents + cents

    @flow.action
    def pay(self, card: str) -> None:
        """Pay for everything in the order."""
        flow.available(self.cents > 0)
        flow.available(x.eq(self.state, "open"))
        flow.perform(flow.ask("charge", card=card, cents=self.cents), into=self.receipt)
        with flow.when(self.paid):
            self.state = "paid"

    @flow.action
    def ship(self) -> None:
        """Send what was paid for."""
        flow.available(x.eq(self.state, "paid"))
        self.state = "shipped"


def chooser(wishes: list[Choice]) -> Chooser:
    """Stands for a model: it has wishes in an order, and takes the first that is offered."""

    def choose(offered: flow.Tools) -> Choice | None:
        for unavailable in offered.unavailable:
            if any(name == unavailable.name for name, _ in wishes):
                print(f"  not {unavailable.name}: {'; '.join(unavailable.reasons)}")
        names = [each.name for each in offered.available]
        wish = next((each for each in wishes if each[0] in names), None)
        if wish is not None:
            wishes.remove(wish)
        return wish

    return choose


async def converse(host: flow.Host, choose: Chooser) -> list[str]:
    """Offer what can be done, do what is chosen, until nothing is."""
    done: list[str] = []
    for _ in range(TURNS_MAX):
        offered = flow.tools(host.domain.schema, host.snapshot(), shape="anthropic")
        chosen = choose(offered)
        if chosen is None:
            break
        action, given = offered.call(*chosen)
        result = await host.dispatch(action, given)
        print(f"{action}: {result.status}")
        done.append(action)
    return done


async def main() -> flow.Snapshot:
    host = flow.Host(Order)
    host.register("charge", flow.answering(lambda card, cents: f"{card}-{cents}"))
    wishes: list[Choice] = [("ship", {}), ("pay", {"card": "visa"}), ("add", {"name": "tea", "cents": 350})]
    await converse(host, chooser(wishes))
    order = Order.read(host.snapshot())
    print(f"the order is {order.state}, receipt {order.receipt}")
    return host.snapshot()


if __name__ == "__main__":
    asyncio.run(main())
