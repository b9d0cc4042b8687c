"""A program of flow domains alone, in several versions, and the clients that act on its worlds.

`Bill` has a cell for each key, and its effects are performed one after the other; `Crate` is a document whose effects
are performed at once, and whose answers are patches, so that their order shows; `Till` has one cell and reads the
environment. Every intent that ends well leaves a line with its id and the random seed that it ran with.

Documents change while intents are on their way: `second` has a field more and says so, and what cells have does not fit
`strict`, so their intents wait until another document is there.

Clients choose the ids of intents, repeat them, use them for something else, submit without waiting, patch, abandon
(`abandons.py`), answer effects by hand, and fork the worlds under every policy. `Courier` worlds send intents as
messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import worldline as wl
from tests.campaign.load import forks
from tests.campaign.load.programs import EFFECT_SECONDS, OUTSIDE
from worldline import flow
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.flow import x
from worldline.flow_core.authoring import document_domain
from worldline.flow_core.authoring.action_calls import event_of
from worldline.flow_core.document_schema import sealed
from worldline.model.work import WorkState
from worldline.sim.load.history import ClientOp, History

NAME = "bills"
COURIERS = "couriers"
WORLDS = ("bill-0", "bill-1")
COURIER = "courier-0"
KEYS = ("north", "south")
CELL_BYTES_MAX = 12_000  # of a cell, in simulation
LARGE = 13_000  # characters of an answer that no cell can hold, and that fits into an entry
LATE_SECONDS = 0.6  # so much later than its neighbours comes the first part of some crates
TOTAL_SECONDS = 4.0  # an effect whose attempts take longer in all has timed out
IMPATIENT_SECONDS = 0.5
GONE = "gone"  # the world that an operation is about is deleted
REUSED = "reused"  # the id of an intent was used before, for something else
NONE = "none"  # there was nothing to do it to
NOT_KEPT = "not kept"  # the intent was taken long ago, and the state at its end is not kept any more
# How the effects of an intent behave. Most of them as they should.
HOWS = ("", "", "", "bad", "slow", "late", "large")
FIRST, SECOND, STRICT = "first", "second", "strict"
UPGRADES = (FIRST, SECOND, SECOND, STRICT)

ACTS = ("fill", "pay", "settle", "pack", "ring", "locate")
KINDS = (
    *ACTS,
    "again",
    "other",
    "submit",
    "amend",
    "abandon",
    "region",
    "branch",
    "commission",
    "by hand",
    "go back",
)


# --- The domains -------------------------------------------------------------------------------------------------


def _line() -> str:
    return x.concat(x.intent_id(), "/", x.get("meta.randomSeed"))


class Bill(flow.Domain):
    """A bill that is filled, paid and settled."""

    cents: int = 0
    lines: list[str] = []  # noqa: RUF012 - the default of a field
    begun: str | None = None
    ended: str | None = None
    receipt: str | None = None
    refused: flow.Error | None = None
    one: str | None = None
    two: str | None = None

    @flow.action
    def fill(self, cents: int) -> None:
        self.cents = self.cents + cents
        self.lines = x.append(self.lines, _line())

    @flow.action
    def pay(self, how: str) -> None:
        """A failure is data: it goes where the flow says."""
        flow.available(self.cents > 0)
        with flow.once(self.begun):
            self.receipt = None
            self.refused = None
        asked = flow.ask("collect", id=x.intent_id(), how=how, cents=self.cents)
        flow.perform(asked, into=self.receipt, fail=self.refused)
        with flow.once(self.ended):
            self.lines = x.append(self.lines, _line())

    @flow.action
    def settle(self, how: str) -> None:
        """Two effects in a row. A failure is asked for again by the same node, which ends the intent."""
        with flow.once(self.begun):
            self.one = None
            self.two = None
        flow.perform(flow.ask("inspect", id=x.intent_id(), number=1, how=""), into=self.one)
        flow.perform(flow.ask("inspect", id=x.intent_id(), number=2, how=how), into=self.two)
        with flow.once(self.ended):
            self.lines = x.append(self.lines, _line())


class SecondBill(Bill):
    """A field more, which says what was paid under this document."""

    note: str = "new"

    @flow.action
    def pay(self, how: str) -> None:  # type: ignore[override]
        flow.available(self.cents > 0)
        with flow.once(self.begun):
            self.receipt = None
            self.refused = None
            self.note = x.intent_id()
        asked = flow.ask("collect", id=x.intent_id(), how=how, cents=self.cents)
        flow.perform(asked, into=self.receipt, fail=self.refused)
        with flow.once(self.ended):
            self.lines = x.append(self.lines, _line())


class StrictBill(Bill):
    """A field that must be there, and that no bill has."""

    stamp: str


class Till(flow.Domain):
    """One for each world."""

    total: int = 0
    lines: list[str] = []  # noqa: RUF012 - the default of a field
    begun: str | None = None
    ended: str | None = None
    region: str | None = None

    @flow.action
    def add(self, amount: int) -> None:
        self.total = self.total + amount
        self.lines = x.append(self.lines, _line())

    @flow.action
    def locate(self) -> None:
        """Asks for the environment until it says something, which ends by the bound of computes."""
        with flow.once(self.begun):
            self.region = None
        flow.perform(flow.ask("system.get", key="env.REGION"), into=self.region)
        with flow.once(self.ended):
            self.lines = x.append(self.lines, _line())


def _lit(value: Any) -> dict[str, Any]:
    return {"kind": "lit", "value": value}


def _get(path: str) -> dict[str, Any]:
    return {"kind": "get", "path": path}


def _set(path: str, value: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "patch", "op": "set", "path": path, "value": value}


def _once(marker: str, *steps: dict[str, Any]) -> dict[str, Any]:
    cond = {"kind": "neq", "left": _get(marker), "right": _get("meta.intentId")}
    return {
        "kind": "if",
        "cond": cond,
        "then": {"kind": "seq", "steps": [_set(marker, _get("meta.intentId")), *steps]},
    }


def _part(number: int) -> dict[str, Any]:
    params = {"id": _get("meta.intentId"), "number": _lit(number), "how": _get("input.how")}
    return {
        "kind": "if",
        "cond": {"kind": "isNull", "arg": _get(PARTS[number - 1])},
        "then": {"kind": "effect", "type": "part", "params": params},
    }


PARTS = ("left", "middle", "right")
CRATE = sealed(
    {
        "id": "simulated:crate",
        "version": "1.0.0",
        "types": {},
        "state": {
            "fields": {
                **{name: {"type": "string", "required": False, "default": None} for name in (*PARTS, "begun", "ended")},
                "last": {"type": "string", "required": False, "default": ""},
                "lines": {"type": "array", "required": False, "default": []},
            }
        },
        "computed": {
            "fields": {
                "computed.packed": {
                    "deps": ["right"],
                    "expr": {"kind": "not", "arg": {"kind": "isNull", "arg": _get("right")}},
                }
            }
        },
        "actions": {
            "pack": {
                "input": {"type": "object", "required": True, "fields": {"how": {"type": "string", "required": True}}},
                "flow": {
                    "kind": "seq",
                    "steps": [
                        _once("begun", *(_set(name, _lit(None)) for name in PARTS), _set("last", _lit(""))),
                        *(_part(number + 1) for number in range(len(PARTS))),
                        _once(
                            "ended",
                            _set(
                                "lines",
                                {
                                    "kind": "append",
                                    "array": _get("lines"),
                                    "items": [
                                        {
                                            "kind": "concat",
                                            "args": [_get("meta.intentId"), _lit("/"), _get("meta.randomSeed")],
                                        }
                                    ],
                                },
                            ),
                        ),
                    ],
                },
            }
        },
    }
)


# --- The program -------------------------------------------------------------------------------------------------

QUICK = wl.Retry(attempts=2, initial_delay=0.3, max_delay=0.3)


async def _behave(name: str, id: str, how: str) -> None:
    await OUTSIDE.get().call(name, id)
    if how == "bad":
        raise ValueError(f"{name} refuses {id}")
    if how == "slow":
        await asyncio.sleep(2 * TOTAL_SECONDS)


def made(version: str, name: str) -> tuple[wl.Program, flow.Document]:
    """A program with the domains, and the document of crates as it has it."""
    app = wl.Program(name)

    @app.effect(name="collect", retry=QUICK, timeout=EFFECT_SECONDS, total_timeout=TOTAL_SECONDS)
    async def collect(id: str, how: str, cents: int) -> str:
        await _behave("collect", id, how)
        return "x" * LARGE if how == "large" else f"{cents} for {id}"

    @app.effect(name="inspect", retry=wl.Retry(attempts=1), timeout=EFFECT_SECONDS)
    async def inspect(id: str, number: int, how: str) -> str:
        await _behave("inspect", id, how)
        return "x" * LARGE if how == "large" else f"{number} of {id}"

    @app.effect(name="part", retry=wl.Retry(attempts=1), timeout=EFFECT_SECONDS)
    async def part(id: str, number: int, how: str) -> list[dict[str, Any]]:
        if how == "late" and number == 1:
            await asyncio.sleep(LATE_SECONDS)
        await _behave("part", id, how if number == 2 else "")
        return part_of(id, number, how)

    bills = {FIRST: Bill, SECOND: SecondBill, STRICT: StrictBill}
    app.domain(keyed=True, name="Bill")(bills[version])
    app.domain(Till)
    return app, app.domain(CRATE, keyed=True, name="Crate", effects="parallel")


def part_of(id: str, number: int, how: str) -> list[dict[str, Any]]:
    """What is answered to one part of a crate: patches, of which the last one that is applied shows."""
    name = PARTS[number - 1]
    value = "x" * LARGE if how == "large" and number == 2 else f"{name} of {id}"
    return [{"op": "set", "path": name, "value": value}, {"op": "set", "path": "last", "value": name}]


VERSIONS = {version: made(version, NAME)[0] for version in (FIRST, SECOND, STRICT)}
_, Crate = made(FIRST, NAME)


# --- Intents as messages -----------------------------------------------------------------------------------------

couriers = wl.Program(COURIERS)


@couriers.workflow
async def commission(id: str, to: str, key: str, cents: int, how: str) -> list[str]:
    """An intent of another world, and how it ended there. Nothing to fill in: it is paid."""
    try:
        end = await wl.act(Bill.fill(cents) if cents else Bill.pay(how), key=key, id=id, world=to)
    except wl.errors.Failed as failed:
        return ["failed", failed.code]
    return [end.status, "" if end.error is None else end.error.code]


# --- Plans -------------------------------------------------------------------------------------------------------


def worlds() -> list[tuple[str, str]]:
    return [*((each, NAME) for each in WORLDS), (COURIER, COURIERS)]


def plan(lot: str, draws: random.Random) -> list[list[ClientOp]]:
    """What two clients do: one acts; the other acts, too, and does everything else."""
    acting: list[ClientOp] = []
    for number in range(draws.randint(6, 9)):
        acting.append(_drawn(f"{lot}-a{number}", draws, acting))
    others = [ClientOp(f"{lot}-region", "region", draws.choice(WORLDS), draws.randrange(1_000))]
    branches: list[str] = []
    for number in range(draws.randint(7, 11)):
        id = f"{lot}-b{number}"
        kind = draws.choice(
            ["act", "act", "act", "branch", "branch", "branch", "amend", "abandon", "region", "commission", "by hand"]
            + ["submit", "submit", "prune", "go back"] * bool(branches)
        )
        others.append(_drawn(id, draws, others) if kind == "act" else _other(id, kind, draws, acting, branches))
    return [acting, others]


def _drawn(id: str, draws: random.Random, before: list[ClientOp]) -> ClientOp:
    """An intent, or one of before once more."""
    done = [each for each in before if each.kind in ACTS]
    kind = draws.choice(["fill", "fill", "pay", "pay", "settle", "pack", "pack", "ring", "locate"])
    if done and draws.random() < 0.2:
        earlier = draws.choice(done)
        return ClientOp(
            id, draws.choice(["again", "other"]), earlier.world, earlier.amount, f"{earlier.kind} {earlier.id}"
        )
    return ClientOp(id, kind, draws.choice(WORLDS), draws.randrange(1_000))


def _other(id: str, kind: str, draws: random.Random, acting: list[ClientOp], branches: list[str]) -> ClientOp:
    world, amount = draws.choice(WORLDS), draws.randrange(1_000)
    match kind:
        case "branch":
            branches.append(f"branch-{id}")
            return ClientOp(id, kind, draws.choice([world, *branches[:-1]]), amount, branches[-1])
        case "abandon":
            intent = draws.choice([each for each in acting if each.kind in ACTS])
            return ClientOp(id, kind, intent.world, intent.amount, f"{intent.kind} {intent.id}")
        case "commission":
            reused = [each.id for each in acting if each.kind == "fill" and each.world == world]
            return ClientOp(id, kind, COURIER, amount, f"{world} {draws.choice([id, id, *reused[:1]])}")
        case "submit":
            return ClientOp(id, kind, draws.choice([world, *branches]), amount)
        case "prune" | "go back":
            return ClientOp(id, kind, draws.choice(branches), amount)
        case _:
            return ClientOp(id, kind, world, amount)


def worlds_of(op: ClientOp) -> list[str]:
    """The worlds whose work an operation waits for."""
    return [op.world, op.to.partition(" ")[0]] if op.kind == "commission" else [op.world]


def act_of(kind: str, amount: int) -> tuple[flow.Act[Any], str]:
    """The intent of an operation, and the key of its cell."""
    key, how = KEYS[amount % 2], HOWS[amount // 2 % len(HOWS)]
    match kind:
        case "fill":
            return Bill.fill(amount % 50 + 1), key
        case "pay":
            return Bill.pay(how), key
        case "settle":
            return Bill.settle(how), key
        case "pack":
            return Crate.action("pack")(how=how), key
        case "ring":
            return Till.add(amount % 50 + 1), ""
        case _:
            return Till.locate(), ""


def name_of(act: flow.Act[Any]) -> str:
    """The domain of an intent."""
    return document_domain.name_of(act.domain)


def repeated(op: ClientOp) -> int:
    """The amount of the intent that an operation repeats. `other`: of the same key, most often with another input."""
    return op.amount + 2 * (op.kind == "other")


SUBMITTED = ("fill", "pay", "pack", "ring")


def submitted_as(op: ClientOp) -> str:
    """What is submitted by an operation that waits for nothing."""
    return SUBMITTED[op.amount // 14 % len(SUBMITTED)]


# --- Doing it ----------------------------------------------------------------------------------------------------


async def do(connection: Connection, op: ClientOp, told: History) -> object:
    """One operation, to its answer. Each may be repeated."""
    world = wl.World(connection, op.world)
    try:
        return await _do(connection, world, op, told)
    except wl.NotFound:
        return GONE


async def _do(connection: Connection, world: wl.World, op: ClientOp, told: History) -> object:
    match op.kind:
        case "again" | "other":
            kind, _, id = op.to.partition(" ")
            return await acted(world, kind, repeated(op), id)
        case "submit":
            return await _submitted(connection, op, told)
        case "amend":
            given = [flow.set("cents", op.amount), flow.set("cents", "many"), flow.set("nowhere", 1)][op.amount % 3]
            with contextlib.suppress(wl.BadInput):  # it does not make the data fit a document that has changed
                await world.patch(Bill, [given], key=KEYS[op.amount % 2])
            return "amended"
        case "abandon":
            kind, _, id = op.to.partition(" ")
            act, key = act_of(kind, op.amount)
            with contextlib.suppress(wl.NotFound):
                await world.abandon(act.domain, id, key=key)
            return "abandoned"
        case "region":
            await world.env({"REGION": f"region {op.amount}"})
            return "set"
        case "branch":
            return await _branch(connection, op, told)
        case "go back":
            return await _go_back(connection, op, told)
        case "commission":
            to, _, id = op.to.partition(" ")
            how, cents = HOWS[op.amount // 2 % len(HOWS)], op.amount // 14 % 2 * (op.amount % 50 + 1)
            run = commission(id, to, KEYS[op.amount % 2], cents, how)
            answer = await world.run(run, id=op.id)
            told.acked(op)
            return answer
        case "by hand":
            return await _by_hand(world)
        case _:
            act, key = act_of(op.kind, op.amount)
            schema, data = event_of(act, key=key, id=op.id, named=True)
            told.sends_raw(op, schema, data)
            ended = await acted(world, op.kind, op.amount, op.id)
            told.acked(op)
            return ended


async def acted(world: wl.World, kind: str, amount: int, id: str) -> list[str] | str:
    """How an intent ended, as its client is told."""
    act, key = act_of(kind, amount)
    try:
        done = await world.act(act, key=key, id=id)
    except wl.errors.IdReused:
        return REUSED
    except wl.errors.NotRetained:
        return NOT_KEPT
    return [done.status, "" if done.error is None else done.error.code]


async def _submitted(connection: Connection, op: ClientOp, told: History) -> str:
    act, key = act_of(submitted_as(op), op.amount)
    schema, data = event_of(act, key=key, id=op.id, named=True)
    told.sends_raw(op, schema, data)
    if op.world not in WORLDS and op.amount % 2:  # in a dry fork it may never end, and a fork may go back
        with contextlib.suppress(TimeoutError, wl.RunFailed):
            await wl.World(connection, op.world).act(act, key=key, id=op.id, timeout=IMPATIENT_SECONDS)
        return "tried"
    await Handle(connection, op.world).send(schema, data, id=op.id)
    told.acked(op)
    return "submitted"


async def _branch(connection: Connection, op: ClientOp, told: History) -> str:
    policy = forks.POLICIES[op.amount % 4]
    at = await _height(connection, op, told)
    live = op.amount // 4 % 2 == 0
    script = rules() if policy == "script" or op.amount // 8 % 2 else None
    await wl.World(connection, op.world).fork(op.to, at=at, effects=policy, live=live, script=script)  # type: ignore[arg-type]
    return op.to


def rules() -> list[dict[str, Any]]:
    """A script that answers some effects, and one of them once."""
    return [
        {"effect": "collect", "answer": "scripted", "times": 1},
        {"effect": "inspect", "answer": "scripted"},
        *(
            {"effect": "part", "arguments": {"number": number}, "answer": part_of("script", number, "")}
            for number in (1, 2, 3)
        ),
    ]


async def _height(connection: Connection, op: ClientOp, told: History) -> int | None:
    """Where to fork, or to go back to: as it was chosen once. None: at the head, where something is on its way."""
    if op.id not in told.chosen:
        head = (await Handle(connection, op.world).head()).height
        told.chosen[op.id] = head * (op.amount % 7) // 7 if op.amount // 16 % 3 == 0 else None
    return told.chosen[op.id]


async def _go_back(connection: Connection, op: ClientOp, told: History) -> str:
    """A fork goes back to an older state."""
    head = (await Handle(connection, op.world).head()).height
    at = told.chosen.setdefault(op.id, head * (op.amount % 7) // 7)
    assert at is not None
    await wl.World(connection, op.world).revert(at, effects="reissue" if op.amount % 2 else "drop")
    return "went back"


async def _by_hand(world: wl.World) -> str:
    """Park an effect, and answer it. One that was parked before comes first: its client may have died."""
    for each in await world.effects():
        if each.state is not WorkState.PARKED:
            try:
                await each.park()
            except wl.errors.Closed:
                continue  # it is being tried
        await each.answer(_given(each.name, each.args))
        return f"answered {each.name}"
    return NONE


def _given(name: str, args: dict[str, Any]) -> object:
    if name == "part":
        return part_of(args["id"], args["number"], "")
    return f"by hand for {args['id']}"
