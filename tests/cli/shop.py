"""A program with something of everything, loaded by path as a user's file would be."""

from __future__ import annotations

from dataclasses import dataclass

import worldline as wl

app = wl.Program("shop")


@app.effect
async def shout(text: str) -> str:
    return text.upper()


@app.effect(retry=wl.Retry(attempts=None, initial_delay=3600, max_delay=3600))
def flaky(order: str) -> str:
    raise OSError(f"no route to {order}")


@app.effect(retry=wl.Retry(attempts=1, on_exhausted="park"))
def stuck() -> str:
    raise ValueError("nobody home")


@dataclass(frozen=True)
class Deposited:
    account: str
    cents: int


@dataclass(frozen=True)
class Approved:
    by: str


@dataclass(frozen=True)
class Withdraw(wl.Request[int]):
    account: str
    cents: int


@app.reducer(key="account")
@dataclass
class Account:
    cents: int = 0

    @wl.on
    def deposited(self, event: Deposited) -> None:
        if event.cents < 0:
            raise ValueError("cents below zero")
        self.cents += event.cents

    @wl.on
    def withdraw(self, event: Withdraw) -> int:
        if event.cents > self.cents:
            raise wl.Refused("insufficient funds")
        self.cents -= event.cents
        return self.cents


@app.workflow
async def greet(name: str, seconds: float = 0) -> str:
    await wl.sleep(seconds)
    return await shout(f"hello {name}")


@app.workflow
async def nap(seconds: float = 3600) -> str:
    try:
        await wl.sleep(seconds)
    except wl.EffectFailed as error:
        return f"woken: {error.code}"
    return "slept"


@app.workflow
async def approval(order: str) -> str:
    found = await wl.wait(Approved, timeout=7200)
    return f"{order} by {found.by}"


@app.workflow
async def broken() -> str:
    raise ValueError("it broke")


@app.workflow
async def call_flaky(order: str) -> str:
    return await flaky(order)


@app.workflow
async def call_stuck() -> str:
    return await stuck()
