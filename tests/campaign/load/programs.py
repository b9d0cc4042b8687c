"""The programs whose worlds are simulated, all of them ordinary users of the public API.

Counters (every acknowledged increment counts once), a bank (money moves by messages between worlds, and none is made or
lost), orders (a saga of effects with compensation), and agents (timers, approvals, thoughts as effects).

The outside world is `Outside`: what effects call. It is idempotent by key, as a good service is; it may answer late,
twice, wrongly or never, and it remembers every call.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

import worldline as wl
from worldline.sim.faults.profiles import OutsideFaults
from worldline.sim.load.history import Called
from worldline.sim.runtime.sim_loop import HOST

EFFECT_SECONDS = 1.5
APPROVAL_SECONDS = 4.0


class Outside:
    """The services that effects use."""

    def __init__(self, seed: str, adapters: OutsideFaults, now_us: Callable[[], int]) -> None:
        self.under_way: dict[Called, None] = {}  # of hosts that have died, too
        self._draws = random.Random(seed)
        self._adapters = adapters
        self._now_us = now_us
        self.active = True
        self.calls: list[Called] = []
        self.done: dict[tuple[str, str], object] = {}  # what was performed, by service and idempotency key
        self.on_call: list[Callable[[Called], None]] = []

    def heal(self) -> None:
        """Misbehave no more."""
        self.active = False

    async def call(self, name: str, value: object) -> None:
        """Perform something once per key, however often it is asked for."""
        this = wl.attempt()
        called = Called(self._now_us(), HOST.get().label, name, this.key, this.number)
        self.calls.append(called)
        for look in self.on_call:
            look(called)
        self.under_way[called] = None
        try:
            await self._misbehave(name)
            self.done.setdefault((name, this.key), value)
            await asyncio.sleep(self._draws.random() * 0.2)
        finally:
            del self.under_way[called]

    async def _misbehave(self, name: str) -> None:
        if not self.active:
            return
        draw = self._draws.random() * 100
        if draw < self._adapters.silent:
            await asyncio.sleep(1_000_000)
        draw -= self._adapters.silent
        if 0 <= draw < self._adapters.late:
            await asyncio.sleep(self._draws.choice([0.5, 1.4, 3.0]))
        draw -= self._adapters.late
        if 0 <= draw < self._adapters.wrong:
            raise ConnectionError(f"{name} is out of order")


class Service(Protocol):
    """What effects see of the outside. Chaos with real processes brings one of its own."""

    async def call(self, name: str, value: object) -> None: ...


OUTSIDE: ContextVar[Service] = ContextVar("worldline_sim_outside")

# --- Counters -----------------------------------------------------------------------------------------------

counters = wl.Program("counters")


@dataclass(frozen=True)
class Add:
    id: str
    amount: int
    note: str = ""


@dataclass(frozen=True)
class AddAndTell(wl.Request[int]):
    id: str
    amount: int


@dataclass(frozen=True)
class Poison:
    """What no handler survives."""

    id: str


@counters.reducer()
@dataclass
class Counter:
    total: int = 0
    ids: dict[str, int] = field(default_factory=dict)

    @wl.on
    def add(self, event: Add) -> None:
        self.total += event.amount
        self.ids[event.id] = self.ids.get(event.id, 0) + 1

    @wl.on
    def add_and_tell(self, event: AddAndTell) -> int:
        self.total += event.amount
        self.ids[event.id] = self.ids.get(event.id, 0) + 1
        return self.total

    @wl.on
    def poison(self, event: Poison) -> None:
        self.total += 1_000_000  # must leave no trace
        raise ValueError(f"cannot take {event.id}")


@counters.workflow
async def tally(id: str) -> str:
    """Over as soon as it is begun."""
    return f"{id} done"


# --- Bank ---------------------------------------------------------------------------------------------------

bank = wl.Program("bank")
OPENING = 100


@dataclass(frozen=True)
class Withdrawn:
    amount: int


@dataclass(frozen=True)
class Deposited:
    amount: int
    transfer: str


@bank.reducer()
@dataclass
class Account:
    balance: int = OPENING
    transfers: dict[str, int] = field(default_factory=dict)

    @wl.on
    def withdrawn(self, event: Withdrawn) -> None:
        self.balance -= event.amount

    @wl.on
    def deposited(self, event: Deposited) -> None:
        self.balance += event.amount
        self.transfers[event.transfer] = self.transfers.get(event.transfer, 0) + 1


@bank.workflow
async def transfer(id: str, to: str, amount: int) -> bool:
    if wl.state(Account).balance < amount:
        return False
    wl.emit(Withdrawn(amount))
    try:
        await wl.send(to, Deposited(amount, id))
    except wl.errors.Failed:  # the account is closed, for now or for good
        wl.emit(Withdrawn(-amount))
        return False
    return True


# --- Orders -------------------------------------------------------------------------------------------------

orders = wl.Program("orders")
PATIENT = wl.Retry(attempts=None, initial_delay=0.3, max_delay=2)


@orders.effect(retry=PATIENT, timeout=EFFECT_SECONDS)
async def charge(order: str, cents: int) -> str:
    await OUTSIDE.get().call("charge", cents)
    return f"payment of {order}"


@orders.effect(retry=wl.Retry(attempts=2, initial_delay=0.3, max_delay=0.3), timeout=EFFECT_SECONDS)
async def ship(order: str) -> str:
    await OUTSIDE.get().call("ship", order)
    return f"parcel {order}"


@orders.effect(retry=PATIENT, timeout=EFFECT_SECONDS)
async def refund(order: str, cents: int) -> None:
    await OUTSIDE.get().call("refund", (order, cents))


@orders.workflow
async def fulfil(order: str, cents: int) -> str:
    await charge(order, cents)
    await wl.sleep(0.5)
    try:
        await ship(order)
    except wl.EffectFailed:
        await refund(order, cents)
        return "refunded"
    return "shipped"


# --- Agents -------------------------------------------------------------------------------------------------

agents = wl.Program("agents")


@dataclass(frozen=True)
class Approved:
    task: str
    yes: bool


@agents.effect(retry=PATIENT, timeout=EFFECT_SECONDS)
async def think(task: str, turn: int) -> str:
    await OUTSIDE.get().call("think", f"{task}/{turn}")
    return f"thought {turn} of {task}"


@agents.workflow
async def agent(task: str) -> str:
    first, second = await wl.gather(think(task, 1), think(task, 2))
    try:
        answer = await wl.wait(Approved, where=lambda each: each.task == task, timeout=APPROVAL_SECONDS)
    except TimeoutError:
        return f"{first}, {second}, no answer"
    await wl.sleep(0.2)
    return f"{first}, {second}, {'yes' if answer.yes else 'no'}"


@agents.workflow
async def doze(sheep: int) -> int:
    await wl.sleep(1.5)
    return sheep


@agents.workflow
async def herd(sheep: int) -> int:
    """Many timers, all due at the same instant."""
    return sum(await wl.gather(*(doze(each) for each in range(sheep))))


PROGRAMS = [counters, bank, orders, agents]
