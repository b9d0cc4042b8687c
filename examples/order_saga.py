"""An order that is paid, packed and shipped; and paid back when one of these does not work out.

    python examples/order_saga.py [FOLDER]

Three orders: one arrives, one goes where the carrier never does (tried three times, then refunded), and one is
cancelled by its customer while it is being packed (refunded as well, shielded from a second cancellation).
"""

from __future__ import annotations

import asyncio
import sys
import tempfile

import worldline as wl

app = wl.Program("orders")

PACKING_SECONDS = 0.5


@app.effect
async def charge(card: str, cents: int) -> str:
    """The key is the same on every attempt: a payment service that knows it charges once."""
    print(f"    charge {card}: {cents / 100:.2f} (key {wl.attempt().key})")
    if card == "stolen":
        raise wl.Fatal("the card is blocked", code="declined")
    return f"payment of {card}"


@app.effect(retry=wl.Retry(attempts=3, initial_delay=0.1))
async def ship(order: str, to: str) -> str:
    print(f"    ship {order} to {to} (attempt {wl.attempt().number})")
    if to == "the Moon":
        raise ConnectionError("the carrier does not answer")
    return f"parcel {order}"


@app.effect(retry=wl.Retry(attempts=None))  # money is owed: there is no giving up
async def refund(payment: str, why: str) -> None:
    print(f"    refund {payment}: {why}")


@app.workflow
async def fulfil(order: str, to: str, card: str, cents: int) -> str:
    payment = ""
    try:
        async with wl.scope(shield=True):  # no cancelling halfway: we must know whether we were paid
            payment = await charge.options(key=f"charge-{order}")(card, cents)
    except wl.EffectFailed as declined:
        return f"not paid ({declined.code})"
    try:
        await wl.sleep(PACKING_SECONDS)
        parcel = await ship(order, to)
    except wl.EffectFailed as lost:
        await refund(payment, f"not shipped after {lost.attempts} attempts")
        return "refunded"
    except wl.Cancelled as cancelled:
        async with wl.scope(shield=True):
            await refund(payment, cancelled.reason)
        raise
    return f"{parcel} is on its way"


async def main(folder: str) -> None:
    async with wl.open(folder, host=app) as universe:
        world = await universe.ensure("shop", app)

        print("an order to Lisbon")
        print(f"  -> {await world.run(fulfil('A1', 'Lisbon', 'visa', 4200), id='A1')}")

        print("an order to the Moon")
        print(f"  -> {await world.run(fulfil('A2', 'the Moon', 'visa', 9900), id='A2')}")

        print("an order paid with a stolen card")
        print(f"  -> {await world.run(fulfil('A3', 'Lisbon', 'stolen', 100), id='A3')}")

        print("an order that is cancelled while it is packed")
        run = await world.start(fulfil("A4", "Porto", "visa", 1500), id="A4")
        await run.cancel("the customer has changed her mind")
        try:
            await run.result()
        except wl.RunCancelled as cancelled:
            print(f"  -> {cancelled}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="orders-")))
