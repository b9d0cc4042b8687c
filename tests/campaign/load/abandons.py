"""Clients that abandon intents of flow domains while these are on their way.

`drop`: a client sends a few intents to one cell, waits for one of them, and abandons that one a moment later: by then
its effects are open, or it is queued behind the others, or it has ended. One intent is always queued behind it.

`reap`: a client looks into a world, or a fork, and abandons what it finds there: the intent on its way or one that is
queued, whichever client it is of. In a fork its effects may be parked, or shared with the parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import random

import worldline as wl
from tests.campaign.load import clerks, flow_domains
from worldline.base import errors
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.features.domains.pure import domain_cell
from worldline.features.domains.pure import part as domain_part
from worldline.flow_core import slots
from worldline.flow_core.authoring.action_calls import event_of
from worldline.kernel.machine import Machine
from worldline.sim.load.history import ClientOp, History

KINDS = ("drop", "reap")
DROPPED = ("settle", "pack", "pay")  # actions that ask for effects
PAUSES_SECONDS = (0.0, 0.05, 0.15, 0.4)  # before an intent is abandoned
AHEAD = (0, 0, 1, 2)  # intents that are sent to its cell first
LOOK_SECONDS = 0.1
LOOKS_MAX = 8


def plan(lot: str, draws: random.Random, forks: list[str]) -> list[ClientOp]:
    """What one client does. `forks`: that other clients make."""
    ops = []
    for number in range(draws.randint(2, 4)):
        kind = draws.choice(["drop", "drop", "reap"])
        worlds = [*flow_domains.WORLDS, clerks.WORLD, *(forks if kind == "reap" else [])]
        ops.append(ClientOp(f"{lot}-c{number}", kind, draws.choice(worlds), draws.randrange(1_000)))
    return ops


def dropped_as(op: ClientOp) -> str:
    """The action of the intent that is abandoned."""
    return DROPPED[op.amount // 14 % len(DROPPED)]


async def do(connection: Connection, op: ClientOp, told: History) -> object:
    """One operation, to its answer. Each may be repeated."""
    try:
        return await (_drop if op.kind == "drop" else _reap)(connection, op, told)
    except wl.NotFound:
        return flow_domains.GONE


async def _drop(connection: Connection, op: ClientOp, told: History) -> object:
    kind = dropped_as(op)
    act, key = flow_domains.act_of(kind, op.amount)
    schema, data = event_of(act, key=key, id=op.id, named=True)
    told.sends_raw(op, schema, data)
    for number in range(AHEAD[op.amount // 42 % len(AHEAD)]):
        await _send(connection, op, f"{op.id}.{number}", "pack" if kind == "pack" else "fill" if number else "settle")
    abandoning = asyncio.create_task(_abandon_soon(connection, op))
    try:
        ended = await flow_domains.acted(wl.World(connection, op.world), kind, op.amount, op.id)
    finally:
        abandoning.cancel()
    told.acked(op)
    return ended


async def _send(connection: Connection, op: ClientOp, id: str, kind: str) -> None:
    """Another intent of the same cell, for which its client does not wait."""
    act, key = flow_domains.act_of(kind, op.amount)
    schema, data = event_of(act, key=key, id=id, named=True)
    await Handle(connection, op.world).send(schema, data, id=id)


async def _abandon_soon(connection: Connection, op: ClientOp) -> None:
    """A failure is no harm: without this, the intent ends by itself."""
    act, key = flow_domains.act_of(dropped_as(op), op.amount)
    with contextlib.suppress(errors.Error):
        await asyncio.sleep(PAUSES_SECONDS[op.amount // 168 % len(PAUSES_SECONDS)])
        await _send(connection, op, f"{op.id}.behind", dropped_as(op))
        await wl.World(connection, op.world).abandon(act.domain, op.id, key=key)


async def _reap(connection: Connection, op: ClientOp, told: History) -> str:
    del told
    world = Handle(connection, op.world)
    for _ in range(LOOKS_MAX):
        found = _on_their_way(await world.machine())
        if found:
            domain, key, id = found[op.amount % len(found)]
            with contextlib.suppress(wl.NotFound):
                await world.command(domain_part.ABANDON, domain_part.AbandonIntent(domain, key, id))
            return "reaped"
        await asyncio.sleep(LOOK_SECONDS)
    return flow_domains.NONE


def _on_their_way(machine: Machine) -> list[tuple[str, str, str]]:
    """The intents of a world that have not ended: domain, key and id of each."""
    found = []
    for (domain, key), cell in sorted(machine.cells.items()):
        own, head = domain_cell.decode(cell.data)
        found += [(domain, key, id) for id in [*slots.every(head), *(each.id for each in own.queue)]]
    return found
