"""The order saga, edited: expensive orders are insured before shipping, and a declined card has another message.

worldline upgrade shop --shadow --app examples/shadow_upgrade/new_saga.py --store FOLDER
"""

from __future__ import annotations

import worldline as wl

app = wl.Program("orders")

PACKING_SECONDS = 0.5
INSURED_CENTS_MIN = 5_000


@app.effect
async def charge(card: str, cents: int) -> str:
    raise NotImplementedError("this version is only tried, and a trial calls no effect")


@app.effect(retry=wl.Retry(attempts=3, initial_delay=0.1))
async def ship(order: str, to: str) -> str:
    raise NotImplementedError


@app.effect
async def insure(order: str, cents: int) -> str:
    raise NotImplementedError


@app.effect(retry=wl.Retry(attempts=None))
async def refund(payment: str, why: str) -> None:
    raise NotImplementedError


@app.workflow
async def fulfil(order: str, to: str, card: str, cents: int) -> str:
    payment = ""
    try:
        async with wl.scope(shield=True):
            payment = await charge.options(key=f"charge-{order}")(card, cents)
    except wl.EffectFailed as declined:
        return f"declined: {declined.code}"  # was: not paid (...)
    try:
        await wl.sleep(PACKING_SECONDS)
        if cents >= INSURED_CENTS_MIN:
            await insure(order, cents)  # new
        parcel = await ship(order, to)
    except wl.EffectFailed as lost:
        await refund(payment, f"not shipped after {lost.attempts} attempts")
        return "refunded"
    except wl.Cancelled as cancelled:
        async with wl.scope(shield=True):
            await refund(payment, cancelled.reason)
        raise
    return f"{parcel} is on its way"
