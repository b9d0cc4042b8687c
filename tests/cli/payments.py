"""A program whose effect needs a secret, and says it in every way that an effect has."""

from __future__ import annotations

import worldline as wl

app = wl.Program("payments")


@app.effect
async def noted(order: str) -> str:
    return order


@app.effect(retry=wl.Retry(attempts=None, initial_delay=3600, max_delay=3600))
async def charged(order: str) -> str:
    key = wl.secret("stripe").reveal()
    wl.attempt().emit(f"charging {order} with {key}\n")
    wl.log.warning("charging %s with %s", order, key, key=key)
    raise ConnectionError(f"401 for {key}")


@app.workflow
async def paid(order: str) -> str:
    await noted(order)
    return await charged(order)
