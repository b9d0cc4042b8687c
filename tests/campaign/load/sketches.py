"""Worlds of a short life that all hold the same few large texts, so that bytes are put again that were just swept.

A client makes a world, sends it a text, has an effect fetch another, and deletes the world, over and over, next to
others that do the same. A text is referred to now and then, and by nothing in between: a client that puts it meets a
collector that has condemned it, or is about to delete it. The last world of each client is kept, and holds its texts
to the end.
"""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass

import worldline as wl
from tests.campaign.load.programs import EFFECT_SECONDS, OUTSIDE, PATIENT
from worldline.api.universe_api import Universe
from worldline.client.connection import Connection
from worldline.sim.load.history import ClientOp

NAME = "sketches"
TEXTS = 6
WORDS = 3_000  # of a text: too large for an item
KEPT, HASTY = "kept", "hasty"  # the world stays; it is deleted as soon as it was given something
DONE, GONE = "done", "gone"

sketches = wl.Program(NAME)


@dataclass(frozen=True)
class Drawn:
    """No id: two of them with one text are the same bytes."""

    text: str


@sketches.reducer()
@dataclass
class Sketch:
    text: str = ""

    @wl.on
    def drawn(self, event: Drawn) -> None:
        self.text = event.text


@sketches.effect(retry=PATIENT, timeout=EFFECT_SECONDS)
async def fetch_text(number: int) -> str:
    await OUTSIDE.get().call("text", number)
    return text(number)


@sketches.workflow
async def redraw(number: int) -> int:
    """What is answered is large, and so is what the step that takes it emits."""
    found = await fetch_text(number)
    wl.emit(Drawn(found))
    return len(found)


def text(number: int) -> str:
    return f"text {number} " * WORDS


def second(op: ClientOp) -> int:
    """The text that its world is left with."""
    return (op.amount + 1) % TEXTS


def plan(lot: str, draws: random.Random) -> list[ClientOp]:
    """What one client does. The last world is kept."""
    ops = []
    for number in range(draws.randint(10, 18)):
        how = draws.choice(["", HASTY])
        ops.append(ClientOp(f"{lot}-{number}", "sketch", f"sketch-{lot}-{number}", draws.randrange(TEXTS), how))
    return [*ops, ClientOp(f"{lot}-last", "sketch", f"sketch-{lot}-last", draws.randrange(TEXTS), KEPT)]


async def do(connection: Connection, op: ClientOp) -> str:
    """The life of one world. May be repeated: it goes on with what is there, or once more with a new world."""
    world = wl.World(connection, op.world)
    try:
        with contextlib.suppress(wl.Exists):
            await Universe(connection).create(op.world, sketches)
        sent = await world.send(Drawn(text(op.amount)), id=op.id)
        if op.to != HASTY:
            await sent.applied()
            await world.run(redraw(second(op)), id=f"redraw-{op.id}")
        if op.to != KEPT:
            await world.delete()
    except wl.NotFound:
        return GONE
    return DONE
