"""What the simulated clients do with the programs, whatever happens in between.

A client is a function over a plan that can be started again after a crash: it repeats what it has no answer for, under
the same ids. Besides ordinary work there is poison (inputs that no world can take), payloads at the very limits, herds
of timers, and worlds that are closed and opened, or deleted, while others talk to them.

Anonymous operations have no id to repeat: each is made once, and its client remembers how that ended. A client with two
doors makes them one after the other, by turns through a process that hosts worlds and one that does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

import worldline as wl
from tests.campaign.load import (
    abandons,
    clerks,
    flow_domains,
    forgers,
    forks,
    fragile,
    hostile,
    offices,
    programs,
    sketches,
)
from worldline.base import errors, limits
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.kernel import user_values
from worldline.model.world_records import Status
from worldline.sim.load import history as histories
from worldline.sim.load.history import ClientOutcome
from worldline.sim.load.scenarios import UNIVERSE

Op = histories.ClientOp
History = histories.History

LARGE = 6_000  # words of a note that is too large for the store and goes to the objects
HERD = 20
UNKNOWN = "unknown.schema"  # a schema
PATIENCE_SECONDS = 20.0
# Sizes of payloads at which something changes: inline or not, fits into an item or a frame or not.
SIZES = (limits.INLINE_BYTES_MAX, limits.ITEM_BYTES_MAX, limits.FRAME_BYTES_MAX)

COUNTED = ("add", "ask", "sized")
ANONYMOUS = ("send", "tell")
RUNS = ("transfer", "order", "herd", "tally", "stubborn", "agent", "remit")
FLOWS = (*flow_domains.KINDS, *abandons.KINDS, *clerks.KINDS)  # operations on flow domains
DOORS = "doors"  # what the ids of operations of clients with two doors begin with
STARTED, REFUSED = "started", "refused"
BACKLOG_WORLD = "counter-0"


class Plan(msgspec.Struct, frozen=True):
    worlds: list[tuple[str, str]]  # name and program
    ops: list[list[Op]]  # for each client
    pause_ms: int
    doors: list[list[Op]] = []  # for each client with two doors
    backlog: list[Op] = []  # what waits in an inbox when the hosts start


# For each kind of operation: how likely it is in a seed, and the worlds it is about (their name and program). Those
# that are never drawn are asked for, one by one or as a class (`Wanted`).
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
    "send": (0, "counter", "counters"),
    "tell": (0, "counter", "counters"),
    "tally": (0, "counter", "counters"),
    "evil": (0, "hostile", "hostiles"),
    "starved": (0, "hostile", "hostiles"),
    "stubborn": (0, "hostile", "hostiles"),
    "remit": (0, "account", "bank"),
}


class Wanted(msgspec.Struct, frozen=True):
    """What clients do besides the ordinary, how many have two doors, and what waits before the hosts start."""

    anonymous: int = 0
    doors: int = 0
    backlog: int = 0
    hostile: int = 0
    fragile: int = 0
    forks: int = 0
    abroad: int = 0
    sketches: int = 0
    flows: int = 0
    forgers: int = 0
    timed: int = 0
    runs: int = 0


# The kinds of operations that each of these is made of.
KINDS_OF = {
    "anonymous": ANONYMOUS,
    "doors": ANONYMOUS,
    "hostile": ("evil", "starved", "stubborn"),
    "timed": ("agent", "herd"),
    "runs": ("tally",),
}


def draw(seed: int, clients: int, kinds: Sequence[str] = (), wanted: Wanted | None = None) -> Plan:
    """The workload of a seed: ordinary clients, and others as they are wanted."""
    plan = _draw(seed, clients, kinds)
    return plan if wanted is None or wanted == Wanted() else _with(plan, seed, wanted)


def _with(plan: Plan, seed: int, wanted: Wanted) -> Plan:
    """Drawn apart from the rest, which stays as it is."""
    draws = random.Random(f"{seed}:wanted")
    worlds = dict(plan.worlds)

    def some(client: str, least: int, most: int) -> list[Op]:
        made = []
        for number in range(draws.randint(least, most)):
            kind = draws.choice(KINDS_OF[client.partition("-")[0]])
            _, name, program = KINDS[kind]
            worlds.update((f"{name}-{each}", program) for each in range(2))
            made.append(Op(f"{client}-{number}", kind, f"{name}-{draws.randrange(2)}", draws.randint(1, 60)))
        return made

    ops = [list(each) for each in plan.ops] or [[]]
    for name in ("anonymous", "hostile", "timed", "runs"):
        for number in range(getattr(wanted, name)):
            mine = draws.choice(ops)
            for op in some(f"{name}-{number}", 2, 3 if name == "timed" else 6):
                mine.insert(draws.randint(0, len(mine)), op)
    for number in range(wanted.fragile):
        worlds.update((each, fragile.NAME) for each in fragile.WORLDS)
        ops.append(fragile.plan(f"fragile-{number}", draws))  # by a client of their own, from the beginning
    for number in range(wanted.forks):
        worlds.update(forks.worlds(str(number)))
        ops += forks.plan(f"forks-{number}", draws)
    for number in range(wanted.abroad):
        worlds.update(offices.worlds())
        ops.append(offices.plan(f"abroad-{number}", random.Random(f"{seed}:offices:{number}")))
    for number in range(wanted.sketches):
        ops.append(sketches.plan(f"sketches-{number}", random.Random(f"{seed}:sketches:{number}")))
    for number in range(wanted.flows):
        worlds.update(flow_domains.worlds())
        acting = flow_domains.plan(f"flows-{number}", random.Random(f"{seed}:flows:{number}"))
        made = [op.to for each in acting for op in each if op.kind == "branch"]
        worlds[clerks.WORLD] = clerks.NAME
        ops += [*acting, abandons.plan(f"flows-{number}", random.Random(f"{seed}:abandons:{number}"), made)]
        ops.append(clerks.plan(f"flows-{number}", random.Random(f"{seed}:clerks:{number}")))
    for number in range(wanted.forgers):
        worlds.update(forgers.worlds())
        ops += forgers.plan(f"forgers-{number}", random.Random(f"{seed}:forgers:{number}"))
    doors = [some(f"{DOORS}-{client}", 8, 24) for client in range(wanted.doors)]
    backlog = [Op(f"backlog-{each}", "add", BACKLOG_WORLD, 1) for each in range(wanted.backlog)]
    if backlog:
        worlds[BACKLOG_WORLD] = KINDS["add"][2]
        draws.choice(ops)[:0] = [Op(f"after-{each}", "add", BACKLOG_WORLD, 1) for each in range(3)]
    return Plan(list(worlds.items()), ops, plan.pause_ms, doors, backlog)


def _draw(seed: int, clients: int, kinds: Sequence[str]) -> Plan:
    """These kinds or some of all, a few worlds for each, operations for each client."""
    draws = random.Random(f"{seed}:workload")
    drawn = [kind for kind, (likely, _, _) in KINDS.items() if likely and draws.random() < likely] or ["add"]
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
            mine.append(
                Op(f"{client}-{number}", kind, world, draws.randint(1, 60), to if kind in ("transfer", "remit") else "")
            )
        ops.append(mine)
    return Plan(listed, ops, draws.choice([10, 200, 1_000]))


async def client(
    connection: Connection,
    name: str,
    ops: list[Op],
    history: History,
    pause_ms: int,
    *,
    patient: bool = False,
    lagging: bool = False,
) -> None:
    """Work through a plan. Outside faults and lost races are tried again, under the same id. `lagging`: journals are
    read late, so that one look through many segments may take longer than a client's first patience.
    """
    for op in ops:
        if op.id in history.answered:
            continue
        died = op.id in history.begun
        history.begin(op, name)
        if op.kind in ANONYMOUS:
            history.answer(op, ClientOutcome.UNCERTAIN if died else await once(connection, op, history))
        else:
            waits = patient and op.kind != "doom"  # the wait for a world that another client deletes would not end
            seconds = None if waits else PATIENCE_SECONDS
            growth = 2 if lagging or op.kind in FLOWS else 1
            history.answer(op, await insist(lambda op=op: do(connection, op, history), seconds, growth))  # type: ignore[misc]
        await asyncio.sleep(pause_ms / 1000)
    history.finished[name] = None


async def insist(
    do_it: Callable[[], Awaitable[object]], seconds: float | None = PATIENCE_SECONDS, growth: int = 1
) -> object:
    """Until it is answered. A client that loses patience asks again under the same id; one without a limit waits.
    `growth`: each time so much longer. A host that reads journals late needs more time for one of many segments.
    """
    while True:
        patience = asyncio.timeout(seconds)
        try:
            async with patience:
                return await do_it()
        except (
            wl.errors.StoreError,
            wl.errors.Conflicted,
            wl.errors.Closed,
            errors.Corrupt,
            errors.DedupeExpired,
            TimeoutError,
        ):
            if seconds is not None and patience.expired():
                seconds *= growth
            await asyncio.sleep(0.3)


async def once(connection: Connection, op: Op, history: History) -> ClientOutcome:
    """An anonymous operation: no second try, and what its error says is taken at its word."""
    try:
        await do(connection, op, history)
    except (errors.StoreUncertain, errors.Corrupt):  # what was damaged on the way was read after the sending
        return ClientOutcome.UNCERTAIN
    except (wl.errors.StoreError, wl.errors.Conflicted, wl.errors.Closed):
        return ClientOutcome.REFUSED
    return ClientOutcome.ACKED


async def do(connection: Connection, op: Op, history: History | None = None) -> object:
    """One operation, to its answer. `history` is told what is sent, and as soon as that is durable."""
    world, told = wl.World(connection, op.world), history or History()
    told.tries(op)
    match op.kind:
        case "add" | "sized" | "starved":
            event = _event(op)
            told.sends(op, event)
            sent = await world.send(event, id=op.id)
            told.acked(op)
            return await _height(sent)
        case "put" | "nudge":
            await asyncio.sleep(fragile.PAUSE_SECONDS if op.kind == "nudge" else 0)
            told.sends(op, fragile.event(op))
            await world.send(fragile.event(op), id=op.id)
            told.acked(op)
            return "sent"
        case "fork" | "seed" | "errand" | "choir" | "cancel" | "mark" | "prune" | "hush" | "revert":
            return await forks.do(connection, op, told)
        case "sketch":
            return await sketches.do(connection, op)
        case kind if kind in flow_domains.KINDS:
            return await flow_domains.do(connection, op, told)
        case kind if kind in FLOWS:
            return await (abandons if kind in abandons.KINDS else clerks).do(connection, op, told)
        case kind if kind in forgers.KINDS:
            return await forgers.do(connection, op)
        case "claim" | "erratic" | "suicidal":
            return await start(world, op, told)
        case "poison" | "evil":
            return await poison(connection, op, told)
        case "ask" | "tell":
            question = programs.AddAndTell(op.id, op.amount)
            told.sends(op, question)
            answer = await world.ask(question, id=None if op.kind in ANONYMOUS else op.id)
            told.acked(op)
            return answer
        case "send":
            told.sends(op, _event(op))
            await world.send(_event(op))
            told.acked(op)
            return "sent"
        case "transfer" | "order" | "herd" | "tally" | "stubborn" | "remit" | "dispatch" | "enquire":
            answer = await world.run(_call(op), id=op.id)
            told.acked(op)
            return answer
        case "tend":
            await tend(world, Status.PAUSED if op.amount % 2 else Status.ARCHIVED)
            return "tended"
        case "doom":
            return await doom(world, op)
        case _:
            run = await world.start(programs.agent(op.id), id=op.id)
            told.acked(op)
            if op.amount % 3:
                await world.send(programs.Approved(op.id, yes=bool(op.amount % 2)), id=f"approve-{op.id}")
            return await run.result()


def _event(op: Op) -> object:
    """What is sent by operations that send one event which counts."""
    match op.kind:
        case "sized":
            return sized(op)
        case "starved":
            return hostile.Starved(op.id)
        case _:
            return programs.Add(op.id, op.amount, f"{op.id} " * LARGE if op.amount % 2 == 0 else "")


def _call(op: Op) -> wl.Call[Any]:
    """What is run by operations that run one workflow."""
    match op.kind:
        case "transfer":
            return programs.transfer(op.id, op.to, op.amount)
        case "remit":  # by the way that messages take to another universe
            return programs.transfer(op.id, f"{UNIVERSE}/{op.to}", op.amount)
        case "dispatch" | "enquire":
            return offices.call(op)
        case "order":
            return programs.fulfil(op.id, op.amount)
        case "herd":
            return programs.herd(HERD)
        case "tally":
            return programs.tally(op.id)
        case _:
            return hostile.stubborn(op.id)


def sized(op: Op) -> programs.Add:
    """An event whose bytes are just at one of the limits, one below or one above."""
    size = SIZES[op.amount % 3] + op.amount // 3 % 3 - 1
    empty = len(user_values.dump(programs.Add(op.id, op.amount)))
    made = programs.Add(op.id, op.amount, "x" * (size - empty - 2))  # a long text has a longer head
    assert len(user_values.dump(made)) == size
    return made


async def poison(connection: Connection, op: Op, told: History) -> object:
    """Something that the world cannot take: its handler raises, or no program declares its type."""
    if op.kind == "evil" or op.amount % 2:
        how = hostile.HOW[op.amount % len(hostile.HOW)]
        event = hostile.Evil(op.id, how) if op.kind == "evil" else programs.Poison(op.id)
        told.sends(op, event)
        sent = await wl.World(connection, op.world).send(event, id=op.id)
    else:
        told.sends_raw(op, UNKNOWN, user_values.dump(op.id))
        sending = await Handle(connection, op.world).send(UNKNOWN, user_values.dump(op.id), id=op.id)
        sent = wl.Sent(connection, sending)
    told.acked(op)
    return await _height(sent)


async def _height(sent: wl.Sent) -> int:
    """Where an event is journaled, taken or not: what becomes of it is looked at in the end."""
    try:
        return await sent.applied()
    except wl.errors.Unhandled as error:
        return error.height


async def start(world: wl.World, op: Op, told: History) -> str:
    """Start a run of the fragile program, whose code may have no such workflow just now."""
    try:
        _ = await world.start(fragile.call(op), id=op.id)
    except wl.NotFound:
        return REFUSED
    told.acked(op)
    return STARTED


async def tend(world: wl.World, status: Status) -> None:
    """Close a world for a while. Another client may do the same; in the end it is open."""
    with contextlib.suppress(wl.errors.Closed):
        await world.change(status=status)
    await asyncio.sleep(1)
    with contextlib.suppress(wl.errors.Closed):  # it is open already
        await world.change(status=Status.ACTIVE)


async def doom(world: wl.World, op: Op) -> str:
    """Delete a world that is in the middle of something."""
    try:
        _ = await world.start(programs.fulfil(op.id, op.amount), id=op.id)
        await asyncio.sleep(op.amount / 30)
        await world.delete()
    except wl.NotFound:
        return "gone already"
    return "gone"
