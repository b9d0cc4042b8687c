"""A program that the kernel's tests share: a few effects, workflows around them, and a reducer with keys."""

from __future__ import annotations

from dataclasses import dataclass, field

import worldline as wl

app = wl.Program("shop")


@dataclass(frozen=True)
class Deposited:
    account: str
    cents: int


@dataclass(frozen=True)
class Withdraw(wl.Request[int]):
    account: str
    cents: int


@dataclass(frozen=True)
class Approved:
    order: str
    by: str = "Ada"


@dataclass(frozen=True)
class Rejected:
    order: str


@app.reducer(key="account")
@dataclass
class Account:
    cents: int = 0
    seen: list[int] = field(default_factory=list)

    @wl.on
    def deposited(self, event: Deposited) -> None:
        if event.cents < 0:
            self.cents = -1  # must not be seen by anybody
            raise ValueError("a deposit cannot be negative")
        self.cents += event.cents
        self.seen.append(event.cents)

    @wl.on
    def withdraw(self, event: Withdraw) -> int:
        if event.cents > self.cents:
            self.cents = -1
            raise wl.Refused("insufficient funds")
        self.cents -= event.cents
        return self.cents


@app.effect
async def shout(text: str) -> str:
    return text.upper()


@app.effect(retry=wl.Retry(attempts=3, initial_delay=1, max_delay=60))
async def charge(card: str, cents: int) -> str:
    return f"{card} {cents}"


@app.effect
async def note(text: str) -> None:
    del text


@app.workflow
async def greet(name: str) -> str:
    await wl.sleep(5)
    return await shout(f"hello {name}")


@app.workflow
async def double(number: int) -> int:
    return number * 2


@app.workflow
async def approval(order: str) -> str:
    event = await wl.wait(Approved, where=lambda each: each.order == order)
    return f"{event.order} by {event.by}"


def script() -> wl.Script:
    """The effects as they are."""
    return (
        wl.Script()
        .on(shout, lambda text: text.upper())
        .on(charge, lambda card, cents: f"{card} {cents}")
        .on(note, None)
    )


def script_of(*effects: wl.Effect[..., str]) -> wl.Script:
    """Only these, as they are."""
    made, whole = wl.Script(), script()
    for effect in effects:
        made.on(effect, *whole.answers[effect.name])
    return made
