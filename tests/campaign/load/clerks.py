"""A program with flow domains and workflows that act on them (`wl.act`), in the same world.

A run does an action and returns how its intent ended. It may wait for a short time only, and then ask again under the
same id, or leave the intent to itself; start two runs that act on the same cell; use an id once more for something
else; or be cancelled by its client while it waits. Worlds are forked, and forks go back, while runs wait.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import worldline as wl
from tests.campaign.load import flow_domains
from worldline import flow
from worldline.client.connection import Connection
from worldline.sim.load.history import ClientOp, History

NAME = "clerks"
WORLD = "clerk-0"
KINDS = ("assist",)
ACTIONS = ("settle", "pack", "pay", "fill", "settle", "pack")
PLAIN, HASTY, LEAVES, BOTH, TWICE, CANCELLED = "plain", "hasty", "leaves", "both", "twice", "cancelled"
MODES = (PLAIN, HASTY, LEAVES, BOTH, TWICE, CANCELLED)
PATIENCE_SECONDS = 0.1  # of a run that does not wait for the end
CANCEL_SECONDS = (0.0, 0.1, 0.3)
LATE, REFUSED = "late", "refused"  # instead of the status of an end: it was not waited for; the id was used before

clerks, _ = flow_domains.made(flow_domains.FIRST, NAME)

Told = list[str]  # what a run was told of one intent: its id, status, code


@clerks.workflow
async def assist(id: str, kind: str, amount: int, mode: str) -> list[Told]:
    act, key = flow_domains.act_of(kind, amount)
    if mode == BOTH:
        one, other = await wl.gather(deed(f"{id}.0", kind, amount), deed(f"{id}.1", "fill", amount))
        return [*one, *other]
    try:
        end = await wl.act(act, key=key, id=id, timeout=PATIENCE_SECONDS if mode in (HASTY, LEAVES) else None)
    except TimeoutError:
        if mode == LEAVES:
            return [[id, LATE, ""]]
        end = await wl.act(act, key=key, id=id)
    told = [_told(id, end)]
    if mode == TWICE:
        try:
            told.append(_told(id, await wl.act(again(kind, amount), key=key, id=id)))
        except wl.errors.Failed as failed:
            told.append([id, REFUSED, failed.code])
    return told


def again(kind: str, amount: int) -> flow.Act[Any]:
    """What the id of an intent is used for once more: most often something else."""
    return flow_domains.act_of(kind, amount + 2)[0]


@clerks.workflow
async def deed(id: str, kind: str, amount: int) -> list[Told]:
    act, key = flow_domains.act_of(kind, amount)
    return [_told(id, await wl.act(act, key=key, id=id))]


def _told(id: str, end: wl.Acted[Any]) -> Told:
    return [id, end.status, "" if end.error is None else end.error.code]


# --- Plans -------------------------------------------------------------------------------------------------------


def plan(lot: str, draws: random.Random) -> list[ClientOp]:
    """What one client does: it starts runs that act, and forks their world."""
    ops: list[ClientOp] = []
    forks: list[str] = []
    for number in range(draws.randint(3, 4)):
        id, amount = f"{lot}-d{number}", draws.randrange(1_000)
        kind = draws.choice(["assist"] * 4 + ["branch"] + ["assist in a fork", "go back"] * bool(forks))
        match kind:
            case "branch":
                forks.append(f"branch-{id}")
                ops.append(ClientOp(id, kind, WORLD, amount, forks[-1]))
            case "go back":
                ops.append(ClientOp(id, kind, draws.choice(forks), amount))
            case _:
                world = WORLD if kind == "assist" else draws.choice(forks)
                ops.append(ClientOp(id, "assist", world, amount, draws.choice(MODES)))
    return ops


def action_of(op: ClientOp) -> str:
    """The action that the run of an operation does."""
    return ACTIONS[op.amount // 14 % len(ACTIONS)]


async def do(connection: Connection, op: ClientOp, told: History) -> object:
    """One run, to its answer. May be repeated. A run in a fork is not waited for: a dry fork has no answers, and a
    fork that goes back has no such run.
    """
    world = wl.World(connection, op.world)
    try:
        run = await world.start(assist(op.id, action_of(op), op.amount, op.to), id=op.id)
        told.acked(op)
        if op.to == CANCELLED:
            await asyncio.sleep(CANCEL_SECONDS[op.amount // 84 % len(CANCEL_SECONDS)])
            await run.cancel("the simulation says so")
        return await run.result() if op.world == WORLD else "started"
    except wl.RunCancelled:
        return CANCELLED
    except wl.NotFound:
        return flow_domains.GONE
