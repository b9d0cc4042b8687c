"""What the simulated clients do, and what must hold of it afterwards whatever happened in between.

Four programs, all of them ordinary users of the public API: counters (every acknowledged increment counts once), a bank
(money moves by messages between worlds, and none is made or lost), orders (a saga of effects with compensation), and
agents (timers, approvals, thoughts as effects). A client is a function over a plan that can be started again after a
crash: it repeats what it has no answer for, under the same ids.

The outside world is `Outside`: what effects call. It is idempotent by key, as a good service is; it may answer late,
twice, wrongly or never, and it remembers every call.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

import msgspec

import worldline as wl
from worldline.sim.faults import Adapters
from worldline.sim.loop import HOST

EFFECT_SECONDS = 1.5
APPROVAL_SECONDS = 4.0
LARGE = 6_000  # words of a note that is too large for the store and goes to the objects


class Called(msgspec.Struct, frozen=True):
    """One call that reached the outside."""

    time_us: int
    host: str
    name: str
    key: str
    attempt: int


class Outside:
    """The services that effects use."""

    def __init__(self, seed: str, adapters: Adapters, now_us: Callable[[], int]) -> None:
        self._draws = random.Random(seed)
        self._adapters = adapters
        self._now_us = now_us
        self.active = True
        self.calls: list[Called] = []
        self.done: dict[tuple[str, str], object] = {}  # what was performed, by service and idempotency key
        self.on_call: list[Callable[[Called], None]] = []

    async def call(self, name: str, value: object) -> None:
        """Perform something once per key, however often it is asked for."""
        this = wl.attempt()
        called = Called(self._now_us(), HOST.get().label, name, this.key, this.number)
        self.calls.append(called)
        for look in self.on_call:
            look(called)
        await self._misbehave(name)
        self.done.setdefault((name, this.key), value)
        await asyncio.sleep(self._draws.random() * 0.2)

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


OUTSIDE: ContextVar[Outside] = ContextVar("worldline_sim_outside")

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
    await wl.send(to, Deposited(amount, id))
    return True


# --- Orders -------------------------------------------------------------------------------------------------

orders = wl.Program("orders")
PATIENT = wl.Retry(attempts=None, first=0.3, factor=1.5, most=2)


@orders.effect(retry=PATIENT, timeout=EFFECT_SECONDS)
async def charge(order: str, cents: int) -> str:
    await OUTSIDE.get().call("charge", cents)
    return f"payment of {order}"


@orders.effect(retry=wl.Retry(attempts=2, first=0.3, factor=1), timeout=EFFECT_SECONDS)
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
        return f"{first}, {second}, nobody answered"
    await wl.sleep(0.2)
    return f"{first}, {second}, {'yes' if answer.yes else 'no'}"


PROGRAMS = [counters, bank, orders, agents]

# --- Plans and clients --------------------------------------------------------------------------------------


class Op(msgspec.Struct, frozen=True):
    """One thing a client will do. `kind`: add, ask, transfer, order, agent, approve."""

    id: str
    kind: str
    world: str
    amount: int = 0
    to: str = ""


class Plan(msgspec.Struct, frozen=True):
    worlds: list[tuple[str, str]]  # name and program
    ops: list[list[Op]]  # for each client
    pause_ms: int


class History:
    """What clients know: which operations were begun, which were answered and how."""

    def __init__(self) -> None:
        self.begun: dict[str, Op] = {}
        self.answered: dict[str, object] = {}
        self.finished: dict[str, None] = {}  # clients that are through


def draw(seed: int, clients: int) -> Plan:
    """The workload of a seed: some of the four programs, a few worlds of each, operations for each client."""
    draws = random.Random(f"{seed}:workload")
    kinds = [kind for kind in ("add", "ask", "transfer", "order", "agent") if draws.random() < 0.6] or ["add"]
    counts = draws.randint(1, 3)
    worlds = [(f"counter-{i}", "counters") for i in range(counts)] if {"add", "ask"} & {*kinds} else []
    accounts = [f"account-{i}" for i in range(draws.randint(2, 3))] if "transfer" in kinds else []
    worlds += [(name, "bank") for name in accounts]
    worlds += [(f"shop-{i}", "orders") for i in range(2)] if "order" in kinds else []
    worlds += [(f"desk-{i}", "agents") for i in range(2)] if "agent" in kinds else []
    ops = []
    for client in range(clients):
        mine = []
        for number in range(draws.randint(4, 12)):
            kind, id = draws.choice(kinds), f"{client}-{number}"
            amount = draws.randint(1, 60)
            if kind in ("add", "ask"):
                mine.append(Op(id, kind, f"counter-{draws.randrange(counts)}", amount))
            elif kind == "transfer":
                source, to = draws.sample(accounts, 2)
                mine.append(Op(id, kind, source, amount, to))
            else:
                mine.append(Op(id, kind, f"{'shop' if kind == 'order' else 'desk'}-{draws.randrange(2)}", amount))
        ops.append(mine)
    return Plan(worlds, ops, draws.choice([10, 200, 1_000]))


async def client(universe: wl.Universe, name: str, ops: list[Op], history: History, pause_ms: int) -> None:
    """Work through a plan. Outside faults and lost races are tried again, under the same id."""
    for op in ops:
        if op.id in history.answered:
            continue
        history.begun[op.id] = op
        history.answered[op.id] = await insist(lambda op=op: do(universe, op))  # type: ignore[misc]
        await asyncio.sleep(pause_ms / 1000)
    history.finished[name] = None


async def insist(do_it: Callable[[], Awaitable[object]]) -> object:
    """Until it is answered. A client that loses patience asks again under the same id."""
    while True:
        try:
            async with asyncio.timeout(20):
                return await do_it()
        except (wl.StoreError, wl.Conflicted, TimeoutError):
            await asyncio.sleep(0.3)


async def do(universe: wl.Universe, op: Op) -> object:
    world = universe.world(op.world)
    match op.kind:
        case "add":
            note = f"{op.id} " * LARGE if op.amount % 2 == 0 else ""
            sent = await world.send(Add(op.id, op.amount, note), id=op.id)
            return await sent.applied()
        case "ask":
            return await world.ask(AddAndTell(op.id, op.amount), id=op.id)
        case "transfer":
            return await world.run(transfer(op.id, op.to, op.amount), id=op.id)
        case "order":
            return await world.run(fulfil(op.id, op.amount), id=op.id)
        case _:
            run = await world.start(agent(op.id), id=op.id)
            if op.amount % 3:
                await world.send(Approved(op.id, yes=bool(op.amount % 2)), id=f"approve-{op.id}")
            return await run.result()
