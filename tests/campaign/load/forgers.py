"""Worlds that ask, and clients and worlds that forge: answers to questions that were put to others, envelopes of
senders that have sent nothing, events by names of the runtime's own.

An asker asks a judge, and a client remembers what the asker was told. A forger knows what a world can know of the asker
(address, steps, what it asks), computes the ids that its questions would have without a secret, and sends answers under
them. Another one, with the whole store before its eyes, is `hosts/forger.py`. None of it must count.
"""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass

import worldline as wl
from worldline.base import errors
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.codec import structs
from worldline.kernel import event_dispatch, user_values
from worldline.kernel.authoring import message_calls
from worldline.model import ids
from worldline.sim.load.history import ClientOp

NAME = "court"
ASKERS = ("asker-0", "asker-1")
JUDGES = ("judge-0", "judge-1")
FORGER = "forger"
FORGED = "forged"
KINDS = ("plead", "forge", "pose")
GUESSES = 4  # steps that a forger tries

court = wl.Program(NAME)


@dataclass(frozen=True)
class Plea(wl.Request[str]):
    id: str


@dataclass(frozen=True)
class Reply:
    """What an answer looks like from outside."""

    __schema__ = event_dispatch.REPLY
    ok: bool
    data: bytes


@dataclass(frozen=True)
class Asker:
    """What another world can know of one that asks. `step`: the next that it makes."""

    name: str
    universe: str
    world: str
    step: int


@court.reducer()
@dataclass
class Bench:
    posed: int = 0

    @wl.on
    def plea(self, event: Plea) -> str:
        return verdict(event.id)

    @wl.on
    def letter(self, event: wl.Envelope) -> None:
        self.posed += 1


def verdict(id: str) -> str:
    return f"judged {id}"


@court.workflow
async def plead(id: str, judge: str) -> str:
    return await wl.ask(judge, Plea(id))


@court.workflow
async def forge(asker: Asker, judge: str, plea: str) -> list[str]:
    """Answers under the ids that a question of the asker would have, and an envelope of a sender's own making."""
    at = ids.Address(ids.UniverseId(bytes.fromhex(asker.universe)), ids.WorldId(bytes.fromhex(asker.world)))
    content = message_calls.content(Plea(plea), to="", inbox=None, headers=None, correlation=None)
    said = []
    for step in range(asker.step, asker.step + GUESSES):
        guess = ids.intent_id(at, step=step, ordinal=0, kind=judge, params=content.pack())
        said.append(await _try(asker.name, Reply(True, user_values.dump(FORGED)), guess.hex()))
    said.append(await _try(asker.name, wl.Envelope("letters", b"", {}, asker.world, 1), None))
    return said


async def _try(to: str, event: object, correlation: str | None) -> str:
    try:
        await wl.send(to, event, correlation=correlation)
    except wl.errors.Failed as error:
        return error.code
    return "sent"


def worlds() -> list[tuple[str, str]]:
    return [(each, NAME) for each in (*ASKERS, *JUDGES, FORGER)]


def plan(lot: str, draws: random.Random) -> list[list[ClientOp]]:
    """What two clients do: one has askers ask, the other forges at the same time."""
    pleas = [
        ClientOp(f"{lot}-{number}", "plead", draws.choice(ASKERS), number, draws.choice(JUDGES))
        for number in range(draws.randint(4, 9))
    ]
    forged = [
        ClientOp(
            f"{lot}-forged-{number}", draws.choice(["forge", "forge", "pose"]), FORGER, number, draws.choice(ASKERS)
        )
        for number in range(draws.randint(3, 6))
    ]
    return [pleas, forged]


async def do(connection: Connection, op: ClientOp) -> object:
    """One operation, to its answer."""
    if op.kind == "plead":
        return await wl.World(connection, op.world).run(plead(op.id, op.to), id=op.id)
    asker = Handle(connection, op.to)
    if op.kind == "pose":
        return await _pose(asker, op)
    at, head = await asker.address(), await asker.head()
    lot = op.id.partition("-forged-")[0]
    known = Asker(op.to, at.universe.hex(), at.world.hex(), head.step + 1)
    call = forge(known, JUDGES[op.amount % 2], f"{lot}-{op.amount}")
    # The head is another one when it is tried again: under the same id, that would be another run.
    return await wl.World(connection, op.world).run(call, id=f"{op.id}-{head.step}")


async def _pose(asker: Handle, op: ClientOp) -> str:
    """A client that would be another world, or the runtime."""
    answer = structs.encode(event_dispatch.Answer(True, user_values.dump(FORGED)))
    letter = user_values.dump(wl.Envelope("letters", b"", {}, "ab" * 16, 1))
    for number, (schema, data) in enumerate([(event_dispatch.REPLY, answer), (event_dispatch.ENVELOPE, letter)]):
        with contextlib.suppress(errors.ReservedName):
            await asker.send(schema, data, id=f"{op.id}-{number}")
    return "posed"
