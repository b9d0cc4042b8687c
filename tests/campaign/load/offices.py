"""Offices that send parcels and put questions to worlds of other universes, in this store and another.

A client has an office of its own universe send something, and remembers what came of it: the receipt, an answer, or
the code of the error. What the other side has is in its ledger, by the id of the operation. Some worlds take what comes
from there (`open-`), some take nothing (`sealed-`), some now and then (`fickle-`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import worldline as wl
from worldline.sim.load.history import ClientOp

NAME = "offices"
OFFICES = ("office-0", "office-1")
NEXT = "next"  # a universe in the same store
ABROAD = "abroad"  # a universe in the other store
OVERSEAS = "overseas"  # what hosts here call the other store
WORLDS = ("open-0", "open-1", "sealed-0", "fickle-0")  # in each of these universes
LARGE = 3_000  # words of a note that is too large for an item

offices = wl.Program(NAME)


@dataclass(frozen=True)
class Parcel:
    id: str
    note: str = ""


@dataclass(frozen=True)
class Enquiry(wl.Request[str]):
    id: str


@offices.reducer()
@dataclass
class Ledger:
    """What came, and how often, with the universe that it came from."""

    came: dict[str, int] = field(default_factory=dict)
    senders: dict[str, str] = field(default_factory=dict)

    @wl.on
    def parcel(self, event: Parcel) -> None:
        self._note(event.id)

    @wl.on
    def enquiry(self, event: Enquiry) -> str:
        self._note(event.id)
        return f"told {event.id}"

    def _note(self, id: str) -> None:
        sender = wl.sender()
        self.came[id] = self.came.get(id, 0) + 1
        self.senders[id] = sender.universe if sender is not None else ""


@offices.workflow
async def dispatch(id: str, to: str, words: int) -> list[str]:
    """The id and the stamp that it got, and whether it was there before; or why it was not sent."""
    try:
        receipt = await wl.send(to, Parcel(id, "word " * words))
    except wl.errors.Failed as error:
        return [error.code]
    return [receipt.id, receipt.stamp, "again" if receipt.already_enqueued else "first"]


@offices.workflow
async def enquire(id: str, to: str) -> list[str]:
    try:
        return ["answer", await wl.ask(to, Enquiry(id))]
    except wl.errors.Failed as error:
        return [error.code]


def worlds() -> list[tuple[str, str]]:
    return [(each, NAME) for each in OFFICES]


def plan(lot: str, draws: random.Random) -> list[ClientOp]:
    """What one client does."""
    ops = []
    for number in range(draws.randint(4, 9)):
        to = draws.choice([f"{NEXT}/", f"{OVERSEAS}:{ABROAD}/", f"{OVERSEAS}:{ABROAD}/"]) + draws.choice(WORLDS)
        kind = draws.choice(["dispatch", "dispatch", "enquire"])
        ops.append(ClientOp(f"{lot}-{number}", kind, draws.choice(OFFICES), draws.randrange(4), to))
    return ops


def call(op: ClientOp) -> wl.Call[list[str]]:
    return enquire(op.id, op.to) if op.kind == "enquire" else dispatch(op.id, op.to, 0 if op.amount else LARGE)
