"""What the simulated clients do with the programs, whatever happens in between.

A client is a function over a plan that can be started again after a crash: it repeats what it has no answer for, under
the same ids. Besides ordinary work there is poison (inputs that no world can take), payloads at the very limits, herds
of timers, and worlds that are closed and opened, or deleted, while others talk to them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence

import msgspec

import worldline as wl
from worldline.base import errors, limits
from worldline.kernel import values
from worldline.model.world import Status
from worldline.sim import programs

LARGE = 6_000  # words of a note that is too large for the store and goes to the objects
HERD = 20
# Sizes of payloads at which something changes: inline or not, fits into an item or a frame or not.
SIZES = (limits.INLINE_BYTES_MAX, limits.ITEM_BYTES_MAX, limits.FRAME_BYTES_MAX)

COUNTED = ("add", "ask", "sized")


class Op(msgspec.Struct, frozen=True):
    """One thing a client will do. `kind`: add, ask, transfer, order, agent, sized, poison, herd, tend, doom."""

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


# For each kind of operation: how likely it is in a seed, and the worlds it is about (their name and program).
KINDS = {
    "add": (0.6, "counter", "counters"),
    "ask": (0.6, "counter", "counters"),
    "transfer": (0.6, "account", "bank"),
    "order": (0.6, "shop", "orders"),
    "agent": (0.6, "desk", "agents"),
    "sized": (0.2, "counter", "counters"),
    "poison": (0.25, "counter", "counters"),
    "herd": (0.2, "desk", "agents"),
    "tend": (0.35, "account", "bank"),
    "doom": (0.35, "doomed", "orders"),
}


def draw(seed: int, clients: int, kinds: Sequence[str] = ()) -> Plan:
    """The workload of a seed: these kinds or some of all, a few worlds for each, operations for each client."""
    draws = random.Random(f"{seed}:workload")
    drawn = [kind for kind, (likely, _, _) in KINDS.items() if draws.random() < likely] or ["add"]
    kinds = list(kinds) or drawn
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise errors.BadInput(f"no operations of kind {unknown[0]!r}; there are {', '.join(KINDS)}")
    if "tend" in kinds and "transfer" not in kinds:
        kinds.append("transfer")
    worlds: dict[str, list[str]] = {}
    listed: list[tuple[str, str]] = []
    for kind in kinds:
        _, name, program = KINDS[kind]
        if name not in worlds:
            worlds[name] = [f"{name}-{number}" for number in range(draws.randint(2, 3))]
            listed += [(each, program) for each in worlds[name]]
    ops = []
    for client in range(clients):
        mine = []
        for number in range(draws.randint(4, 12)):
            kind = draws.choice(kinds)
            world, to = draws.sample(worlds[KINDS[kind][1]], 2)
            mine.append(Op(f"{client}-{number}", kind, world, draws.randint(1, 60), to if kind == "transfer" else ""))
        ops.append(mine)
    return Plan(listed, ops, draws.choice([10, 200, 1_000]))


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
        except (wl.StoreError, wl.Conflicted, wl.Closed, TimeoutError):
            await asyncio.sleep(0.3)


async def do(universe: wl.Universe, op: Op) -> object:
    world = universe.world(op.world)
    match op.kind:
        case "add":
            note = f"{op.id} " * LARGE if op.amount % 2 == 0 else ""
            sent = await world.send(programs.Add(op.id, op.amount, note), id=op.id)
            return await sent.applied()
        case "sized":
            return await (await world.send(sized(op), id=op.id)).applied()
        case "poison":
            return await poison(world, op)
        case "ask":
            return await world.ask(programs.AddAndTell(op.id, op.amount), id=op.id)
        case "transfer":
            return await world.run(programs.transfer(op.id, op.to, op.amount), id=op.id)
        case "order":
            return await world.run(programs.fulfil(op.id, op.amount), id=op.id)
        case "herd":
            return await world.run(programs.herd(HERD), id=op.id)
        case "tend":
            await tend(world, Status.PAUSED if op.amount % 2 else Status.ARCHIVED)
            return "tended"
        case "doom":
            return await doom(world, op)
        case _:
            run = await world.start(programs.agent(op.id), id=op.id)
            if op.amount % 3:
                await world.send(programs.Approved(op.id, yes=bool(op.amount % 2)), id=f"approve-{op.id}")
            return await run.result()


def sized(op: Op) -> programs.Add:
    """An event whose bytes are just at one of the limits, one below or one above."""
    size = SIZES[op.amount % 3] + op.amount // 3 % 3 - 1
    empty = len(values.dump(programs.Add(op.id, op.amount)))
    made = programs.Add(op.id, op.amount, "x" * (size - empty - 2))  # a long text has a longer head
    assert len(values.dump(made)) == size
    return made


async def poison(world: wl.World, op: Op) -> object:
    """Something that the world cannot take: its handler raises, or nobody knows what it is."""
    if op.amount % 2:
        sent = await world.send(programs.Poison(op.id), id=op.id)
    else:
        sent = await world.send_raw("nobody.knows", values.dump(op.id), id=op.id)
    return await sent.applied()


async def tend(world: wl.World, status: Status) -> None:
    """Close a world for a while. Somebody else may be at it too; in the end it is open."""
    with contextlib.suppress(wl.Closed):
        await world.change(status=status)
    await asyncio.sleep(1)
    with contextlib.suppress(wl.Closed):  # it is open already
        await world.change(status=Status.ACTIVE)


async def doom(world: wl.World, op: Op) -> str:
    """Delete a world that is in the middle of something."""
    try:
        _ = await world.start(programs.fulfil(op.id, op.amount), id=op.id)
        await asyncio.sleep(op.amount / 30)
        await world.change(status=Status.DELETED)
    except wl.NotFound:
        return "gone already"
    return "gone"
