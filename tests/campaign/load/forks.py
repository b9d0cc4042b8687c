"""The fork storm: worlds with something of every kind open, and clients that fork them whatever happens.

An errand has effects, a question to another world, a child run, a timer and a wait open at the same time. Clients fork
the worlds that run errands, at the head and at heights, under every policy, dry and live; they fork forks, plant seeds,
run errands in forks, take forks back to older states, and delete forks and their parents. A client remembers the height
that it has once chosen, so its request is the same when it is repeated after a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field
from typing import Any

import worldline as wl
from tests.campaign.load.programs import EFFECT_SECONDS, OUTSIDE, PATIENT
from worldline.api.universe_api import Universe
from worldline.base import limits
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.features.forks import fork_commit as forks
from worldline.sim.load.history import ClientOp, History

NAME = "branches"
TRUNKS = ("trunk-0", "trunk-1")
ORACLE = "oracle-0"
POLICIES = ("drop", "reissue", "share", "script")
GONE = "gone"  # the world that an operation is about is deleted
MARK_SECONDS = 2.0
HUSH_SECONDS = 2.0
PRUNE_SECONDS = 0.5
PRUNES_MAX = 20
SINGERS = limits.STEP_EFFECTS_MAX + 6
FIRST_TIMES = 2  # how often the first rule of a script answers
FIRST, REST = "scripted first", "scripted later"

branches = wl.Program(NAME)


@dataclass(frozen=True)
class Mark:
    """For one errand, or only to be counted."""

    id: str
    errand: str = ""


@dataclass(frozen=True)
class Question(wl.Request[str]):
    id: str


@branches.reducer()
@dataclass
class Trail:
    ids: dict[str, int] = field(default_factory=dict)

    @wl.on
    def mark(self, event: Mark) -> None:
        self.ids[event.id] = self.ids.get(event.id, 0) + 1

    @wl.on
    def question(self, event: Question) -> str:
        return f"told {event.id}"


@branches.effect(retry=PATIENT, timeout=EFFECT_SECONDS)
async def fetch(id: str, number: int) -> str:
    await OUTSIDE.get().call("fetch", f"{id}/{number}")
    return f"fetched {id}/{number}"


@branches.workflow
async def inquire(id: str) -> str:
    return await wl.ask(ORACLE, Question(id))


@branches.workflow
async def lull(id: str) -> str:
    await wl.sleep(0.7)
    return f"lulled {id}"


@branches.workflow
async def errand(id: str) -> list[str]:
    found = await wl.gather(fetch(id, 1), fetch(id, 2), inquire(id), lull(id), return_exceptions=True)
    said = [each if isinstance(each, str) else "cancelled" for each in found]
    try:
        await wl.wait(Mark, where=lambda each: each.errand == id, timeout=MARK_SECONDS)
    except TimeoutError:
        said.append("unmarked")
    else:
        said.append("marked")
    try:
        said.append(await fetch(id, 3))
    except wl.errors.Failed:
        said.append("cancelled")
    return said


@branches.workflow
async def choir(id: str) -> int:
    """More timers and runs than one step settles."""
    return len(await wl.gather(*(lull(f"{id}/{number}") for number in range(SINGERS))))


def is_whole(id: str, said: list[str]) -> bool:
    """Whether an errand has ended as it does in a world that was not forked."""
    wanted = [f"fetched {id}/1", f"fetched {id}/2", f"told {id}", f"lulled {id}", f"fetched {id}/3"]
    return [*said[:4], *said[5:]] == wanted


# --- Plans -------------------------------------------------------------------------------------------------------


def felled(lot: str) -> str:
    """The world of a lot that is deleted as soon as no fork leans on it."""
    return f"felled-{lot}"


def worlds(lot: str) -> list[tuple[str, str]]:
    return [(each, NAME) for each in (*TRUNKS, ORACLE, felled(lot))]


def plan(lot: str, draws: random.Random) -> list[list[ClientOp]]:
    """What two clients do: one runs errands, the other forks the worlds that they are in."""
    sources = [*TRUNKS, felled(lot)]
    errands = [
        ClientOp(f"{lot}-errand-{number}", "errand", draws.choice(sources), draws.randint(0, 1), sources[-1])
        for number in range(draws.randint(3, 5))
    ]
    if draws.random() < 0.3:
        errands.insert(draws.randint(0, 2), ClientOp(f"{lot}-choir", "choir", draws.choice(sources)))
    on_felled = [op.id for op in errands if op.world == sources[-1] and op.kind == "errand"]
    if on_felled:
        errands.append(ClientOp(f"{lot}-cancel", "cancel", sources[-1], to=draws.choice(on_felled)))
    ops: list[ClientOp] = []
    forks: list[str] = []
    for number in range(draws.randint(7, 11)):
        id = f"{lot}-{number}"
        kind = (
            draws.choice(["fork"] * 5 + ["seed", "errand", "errand", "mark", "prune", "hush", "revert"])
            if forks
            else "fork"
        )
        match kind:
            case "fork" | "seed":
                ops.append(ClientOp(id, kind, draws.choice(sources + forks), draws.randrange(1_000), f"{kind}-{id}"))
                forks.append(f"{kind}-{id}")
            case "prune":
                ops.append(ClientOp(id, kind, forks.pop(draws.randrange(len(forks)))))
            case "hush":
                ops.append(ClientOp(id, kind, ORACLE))
            case "revert":
                ops.append(ClientOp(id, kind, draws.choice([*forks, felled(lot)]), draws.randrange(7)))
            case _:
                ops.append(ClientOp(id, kind, draws.choice(forks)))
    ops.insert(draws.randint(2, len(ops)), ClientOp(f"{lot}-felling", "prune", felled(lot)))
    return [errands, ops]


# --- Doing it ----------------------------------------------------------------------------------------------------


async def do(connection: Connection, op: ClientOp, told: History) -> object:
    """One operation, to its answer. Each may be repeated."""
    world = wl.World(connection, op.world)
    try:
        match op.kind:
            case "fork":
                return await _fork(connection, op, told)
            case "seed":
                at = await _height(connection, op, told)
                seed = op.world if at is None else f"{op.world}@{at}"
                await Universe(connection).create(op.to, branches, seed=seed)
                return op.to
            case "errand":
                run = await world.start(errand(op.id), id=op.id)
                told.acked(op)
                if op.amount:
                    await world.send(Mark(f"mark-{op.id}", op.id), id=f"mark-{op.id}")
                return await run.result() if op.to and op.world != op.to else "started"
            case "mark":
                told.sends(op, Mark(op.id))
                await world.send(Mark(op.id), id=op.id)
                told.acked(op)
                return "sent"
            case "choir":
                _ = await world.start(choir(op.id), id=op.id)
                told.acked(op)
                return "started"
            case "revert":
                return await _revert(connection, op, told)
            case "cancel":
                await (await world.attach(op.to)).cancel("the simulation says so")
                return "cancelled"
            case "prune":
                return await _prune(world)
            case _:
                await _hush(world)
                return "hushed"
    except wl.NotFound:
        return GONE


async def _fork(connection: Connection, op: ClientOp, told: History) -> str:
    policy = POLICIES[op.amount % 4]
    at = await _height(connection, op, told)
    live = op.amount // 4 % 3 == 0
    script = rules() if policy == "script" or op.amount // 12 % 2 else None
    await wl.World(connection, op.world).fork(op.to, at=at, effects=policy, live=live, script=script)  # type: ignore[arg-type]
    return op.to


async def _prune(world: wl.World) -> str:
    """Delete a world, as soon as no fork leans on it."""
    for _ in range(PRUNES_MAX):
        with contextlib.suppress(wl.errors.InUse):
            await world.delete()
            return "deleted"
        await asyncio.sleep(PRUNE_SECONDS)
    return "kept"


async def _revert(connection: Connection, op: ClientOp, told: History) -> str:
    at = await _height(connection, op, told)
    assert at is not None
    await wl.World(connection, op.world).revert(at, effects="reissue" if op.amount % 2 else "drop")
    return "reverted"


def rules() -> list[dict[str, Any]]:
    """A script whose first rule is used up."""
    return [
        {"effect": "fetch", "answer": FIRST, "times": FIRST_TIMES},
        {"effect": "fetch", "answer": REST},
        {"ask": ORACLE, "answer": REST},
    ]


async def _height(connection: Connection, op: ClientOp, told: History) -> int | None:
    """Where to fork: as it was chosen once. None: at the head."""
    if op.id in told.chosen:
        return told.chosen[op.id]
    at: int | None = None
    match op.amount // 24 % 4:
        case 0:
            at = (await Handle(connection, op.world).head()).height * (op.amount % 7) // 7
        case 1:
            with contextlib.suppress(wl.NotFound):
                parent = await Handle(connection, op.world).describe()
                at = await forks.height_before(connection.store.engine, connection.blobs, parent, "effect fetch")
        case _:
            pass
    told.chosen[op.id] = at
    return at


async def _hush(world: wl.World) -> None:
    """The world that is asked does not answer for a while."""
    with contextlib.suppress(wl.errors.Closed):
        await world.pause()
    await asyncio.sleep(HUSH_SECONDS)
    with contextlib.suppress(wl.errors.Closed):
        await world.resume()
