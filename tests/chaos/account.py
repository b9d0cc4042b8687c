"""The account whose clients are checked: its program, and the order in which it has taken what they did."""

from __future__ import annotations

from dataclasses import dataclass

import worldline as wl
from tests.chaos.linearizability import Kind
from worldline.codec import structs
from worldline.kernel import user_values
from worldline.model import inbox, journal

WORLD = "account"
ENTRIES_MAX = 100_000

program = wl.Program("account")


@dataclass(frozen=True)
class Add:
    """Sent. Like the requests, it carries the id of its operation."""

    op: str
    amount: int


@dataclass(frozen=True)
class Withdraw(wl.Request[int]):
    """Asked. Answered with the new total, which may be below zero."""

    op: str
    amount: int


@dataclass(frozen=True)
class Total(wl.Request[int]):
    op: str
    amount: int = 0


@program.reducer()
@dataclass
class Account:
    total: int = 0

    @wl.on
    def add(self, event: Add) -> None:
        self.total += event.amount

    @wl.on
    def withdraw(self, event: Withdraw) -> int:
        self.total -= event.amount
        return self.total

    @wl.on
    def tell(self, event: Total) -> int:
        del event
        return self.total


INPUTS: dict[Kind, type[Add | Withdraw | Total]] = {Kind.ADD: Add, Kind.WITHDRAW: Withdraw, Kind.TOTAL: Total}
_BY_SCHEMA = {user_values.schema_name(kind): kind for kind in INPUTS.values()}


async def do(world: wl.World, kind: Kind, op: str, amount: int, *, named: bool) -> int | None:
    """One operation. `named`: under an id of its own, so that it may be repeated."""
    id = op if named else None
    match kind:
        case Kind.ADD:
            await world.send(Add(op, amount), id=id)
            return None
        case Kind.WITHDRAW:
            return await world.ask(Withdraw(op, amount), id=id)
        case _:
            return await world.ask(Total(op), id=id)


async def taken(world: wl.World) -> list[str]:
    """The ids of all operations, in the journal's order."""
    entries = await world.journal(limit=ENTRIES_MAX)
    assert len(entries) < ENTRIES_MAX
    items = [structs.decode(inbox.InboxEvent, entry.payload) for entry in entries if entry.kind is journal.Kind.EVENT]
    return [user_values.load(_BY_SCHEMA[item.schema], item.payload.inline or b"").op for item in items]
