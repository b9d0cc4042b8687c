"""An order as a flow domain in a world: filled, paid and shipped, and it says why something cannot be done.

    python examples/order_domain.py [FOLDER]

The order is data: its actions can be explained and previewed before they are done. Charging a card and sending a parcel
are effects. A process that pays is killed with `kill -9` in the middle of it; the same id resumes in this one, with the
same idempotency key. A card that is refused is no exception: the order keeps why.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile

import worldline as wl
from worldline import flow
from worldline.flow import x

app = wl.Program("order-domain")

HELD = "--held"  # the child process: its card reader does not answer


@app.effect(timeout=120)
async def charge(card: str, cents: float) -> str:
    """The key is the same on every attempt: a payment service that knows it charges once."""
    print(f"    charge {card}: {cents / 100:.2f} (attempt {wl.attempt().number}, key {wl.attempt().key})", flush=True)
    if HELD in sys.argv:
        await asyncio.sleep(60)
    if card == "stolen":
        raise wl.Fatal("the card is blocked", code="declined")
    return f"{card}-{cents:g}"


@app.effect
async def ship(to: str) -> str:
    return f"a parcel to {to}"


@app.domain(keyed=True)
class Order(flow.Domain):
    """An order of a small shop."""

    cents: int = 0
    receipt: str | None = None
    refused: flow.Error | None = None
    parcel: str | None = None

    @flow.computed
    def paid(self) -> bool:
        """Whether there is a receipt."""
        return x.not_null(self.receipt)

    @flow.action
    def fill(self, cents: int) -> None:
        """Say what it costs."""
        flow.available(x.not_(self.paid))
        self.cents = cents

    @flow.action
    def pay(self, card: str) -> None:
        """Pay for it, with a card."""
        flow.available(self.cents > 0)
        flow.available(x.not_(self.paid))
        flow.perform(charge(card, self.cents), into=self.receipt, fail=self.refused)

    @flow.action
    def send(self, to: str) -> None:
        """Send what was paid for."""
        flow.available(self.paid)
        flow.perform(ship(to), into=self.parcel)


async def pay_and_be_killed(folder: str) -> str:
    """Another process begins to pay, and is killed while it charges the card. Returns what it has said until then."""
    child = await asyncio.create_subprocess_exec(sys.executable, __file__, folder, HELD, stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    said = (await child.stdout.readline()).decode()  # nothing if it was paid in an earlier run
    if said:
        child.kill()
    await child.communicate()
    return said


async def held(folder: str) -> None:
    """The child process."""
    async with wl.open(folder, host=app) as universe:
        world = await universe.ensure("shop", app)
        await world.act(Order.pay("visa"), key="o-1", id="pay-1")


async def main(folder: str) -> None:
    async with wl.open(folder, host=app) as universe:
        world = await universe.ensure("shop", app)
        print(f"o-1: can it be paid? {await world.explain(Order.pay, key='o-1')}")
        filled = await world.act(Order.fill(4200), key="o-1", id="fill-1")
        print(f"o-1: filled, {filled.state.cents / 100:.2f}")
        preview = await world.preview(Order.pay("visa"), key="o-1")
        print(f"o-1: paying would ask for {[name for name, _ in preview.asks]}, and is {preview.status} until then")

    said = await pay_and_be_killed(folder)
    if said:
        print(f"{said}o-1: that was another process, which was killed while it charged the card")

    async with wl.open(folder, host=app) as universe:
        world = await universe.ensure("shop", app)
        for _ in range(2):  # the same id is the same intent: it resumes, and then it is done
            paid = await world.act(Order.pay("visa"), key="o-1", id="pay-1")
            print(f"o-1: pay-1 is {paid.status}, receipt {paid.state.receipt}")
        sent = await world.act(Order.send("Lisbon"), key="o-1", id="send-1")
        print(f"o-1: sent, {sent.state.parcel}")

        await world.act(Order.fill(100), key="o-2", id="fill-2")
        refused = await world.act(Order.pay("stolen"), key="o-2", id="pay-2")
        assert refused.state.refused is not None
        print(f"o-2: pay-2 is {refused.status}, refused: {refused.state.refused.message}")
        print(f"o-2: can it be sent? {await world.explain(Order.send, key='o-2')}")


if __name__ == "__main__":
    where = next((each for each in sys.argv[1:] if each != HELD), None) or tempfile.mkdtemp(prefix="order-domain-")
    asyncio.run(held(where) if HELD in sys.argv else main(where))
