"""Histories of worlds that are forked and reverted, on a real store; and the model that they are compared with.

A plan is what a run does, as data. An act is what is done to one of the worlds; which of them, is a number. The clock
and the order of what happens are those of the machine, so no two lives of a history are the same. The model of a world
is therefore made of its journal: every input is given to a kernel machine in memory, from the first world's birth on,
and the rows are kept as they are at the end of each step. What the store says of a world, of its snapshots and of its
differences to another one is compared with these rows, all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

import worldline as wl
from tests.kits.kit import Process
from worldline.host.feature_list import PARTS
from worldline.kernel import replay, state_rows
from worldline.kernel.machine import Machine
from worldline.model import ids, journal, payload
from worldline.model.change import Row
from worldline.runtime import world_restore

SECONDS = 60.0
TREE_MAX = 5  # worlds of one history, besides the one that is asked
RULES: list[dict[str, Any]] = [
    {"effect": "outside", "arguments": {"number": 4}, "error": "scripted"},
    {"effect": "outside", "answer": 33, "times": 2},
    {"ask": "bank", "answer": 7, "times": 1},
]

app = wl.Program("travels")
gate: asyncio.Event  # what some effects wait for; of the history that is lived


@dataclass(frozen=True)
class Ping:
    number: int


@dataclass(frozen=True)
class Count(wl.Request[int]):
    by: int


@app.reducer()
@dataclass
class Heard:
    total: int = 0
    drawn: int = 0

    @wl.on
    def ping(self, event: Ping) -> None:
        self.total += event.number
        self.drawn = wl.random().randrange(1_000)
        if event.number % 4 == 3:
            wl.after(0.01, Ping(1))

    @wl.on
    def count(self, event: Count) -> int:
        self.total += event.by
        return self.total


@app.reducer(key="number")
@dataclass
class Each:
    times: int = 0

    @wl.on
    def ping(self, event: Ping) -> None:
        self.times += 1


@app.effect(retry=wl.Retry(attempts=2, initial_delay=0.005))
async def outside(number: int) -> int:
    if number % 5 == 4:
        raise wl.Fatal("never", code="fatal")
    if number in (3, 5, 6):
        await gate.wait()
    if number % 5 == 2 and wl.attempt().number == 1:
        raise ConnectionError("not yet")
    return number * 10


@app.workflow
async def follow(plan: list[Any], depth: int = 0) -> list[Any]:
    said: list[Any] = []
    for what, *rest in plan:
        try:
            said.append(await do(what, rest, depth))
        except (wl.EffectFailed, wl.RunFailed, TimeoutError, KeyError) as error:
            said.append(type(error).__name__)
    return said


async def do(what: str, rest: list[Any], depth: int) -> Any:
    match what, rest:
        case "effect", [number]:
            return await outside(number)
        case "effects", [numbers]:
            return await wl.gather(*[outside(number) for number in numbers])
        case "sleep", [hundredths]:
            await wl.sleep(hundredths / 100 if hundredths else 600)
        case "wait", [hundredths]:
            return (await wl.wait(Ping, timeout=None if hundredths is None else hundredths / 100)).number
        case "question", [by]:
            return await wl.ask("bank", Count(by))
        case "message", [number]:
            await wl.send("bank", Ping(number))
        case "child", [plan] if depth < 2:
            return await follow(plan, depth + 1)
        case "start", [plan] if depth < 2:
            _ = wl.start(follow(plan, depth + 1))
        case "in time", [hundredths, plan]:
            async with wl.scope(timeout=hundredths / 100):
                return await follow(plan, depth + 1)
        case "emit", [number]:
            wl.emit(Ping(number))
        case "draw", []:
            return [wl.random().randrange(1_000), wl.uuid().hex, wl.state(Heard).total]
        case "raise", []:
            raise KeyError("planned")
    return None


# --- Living ----------------------------------------------------------------------------------------------------------


class Branch:
    """A world of the tree, and where it was forked: nothing of that is read from the store."""

    def __init__(self, world: wl.World, at: ids.Address, parent: Branch | None = None, height: int = 0) -> None:
        self.world = world
        self.at = at
        self.parent = parent
        self.height = height

    def owner(self, height: int) -> Branch:
        """The world in whose journal an entry is."""
        return self if self.parent is None or height > self.height else self.parent.owner(height)


class Tree:
    """One history while it is lived."""

    def __init__(self, process: Process) -> None:
        self.universe = process.universe
        self.branches: list[Branch] = []
        self.done: Counter[str] = Counter()
        self.runs = 0

    async def begin(self) -> None:
        global gate
        gate = asyncio.Event()
        bank = await self.universe.create("bank", app)
        self.bank = bank
        trunk = await self.universe.create("trunk", app)
        self.branches.append(Branch(trunk, await trunk._handle.address()))

    async def live(self, acts: list[Any]) -> None:
        for what, which, *rest in acts:
            branch = self.branches[which % len(self.branches)]
            # A world does not take everything: its run may be gone or not be there, what it waits for may not come.
            with contextlib.suppress(wl.NotFound, wl.Exists, wl.errors.Closed):
                await self._act(branch, what, rest)
                self.done[what] += 1

    async def _act(self, branch: Branch, what: str, rest: list[Any]) -> None:
        world = branch.world
        match what, rest:
            case "send", [number]:
                await (await world.send(Ping(number))).applied(SECONDS)
            case "ask", [by]:
                await world.ask(Count(by), timeout=SECONDS)
            case "run", [plan]:
                self.runs += 1
                _ = await world.start(follow(plan), id=f"run-{self.runs}")
            case "cancel", [number]:
                await (await world.attach(f"run-{number}")).cancel("by hand")
            case "answer", [value]:
                for effect in (await world.effects())[:1]:
                    await effect.answer(value)
            case "rest", [hundredths]:
                await asyncio.sleep(hundredths / 100)
            case "drop", []:  # its machine: the next input finds the world restored
                await world.pause()
                await world.resume()
            case "save", []:
                await world.ask(Count(0), timeout=SECONDS)  # so that it is held here
                await world.snapshot()
            case "bank", [paused]:
                await (self.bank.pause() if paused else self.bank.resume())
            case "gate", []:
                gate.set()
            case "fork", [where, policy, live, scripted] if len(self.branches) < TREE_MAX:
                await self._fork(branch, where, policy, live, RULES if scripted or policy == "script" else None)
            case "revert", [where, policy]:
                await world.revert(int(where * (await world.head()).height), effects=policy)

    async def _fork(self, branch: Branch, where: float | None, policy: Any, live: bool, script: Any) -> None:
        name = f"fork-{len(self.branches)}"
        top = await branch.world.head()
        at = None if where is None else int(where * top.height)
        made = await branch.world.fork(name, at=at, effects=policy, live=live, script=script)
        lineage = await made.lineage()
        assert lineage is not None
        assert at is None or top.height == 0 or lineage.height <= at
        self.branches.append(Branch(made, await made._handle.address(), branch, lineage.height))

    async def stop(self) -> None:
        """Let every fork begin, and then none of the worlds do anything more."""
        gate.set()
        for branch in self.branches:
            await branch.world.ask(Count(1), timeout=SECONDS)
        for branch in self.branches:
            await branch.world.pause()


# --- The model -------------------------------------------------------------------------------------------------------


class Model:
    """A world as a kernel machine makes it of its inputs, step by step. `heads` and `rows` begin with the birth."""

    def __init__(self, branch: Branch, entries: list[journal.JournalEntry], loaded: dict[bytes, bytes]) -> None:
        self.branch = branch
        self.entries = entries
        machine = Machine(app)
        owner: Branch | None = None
        self.heads = [journal.Head(0, 0, journal.GENESIS.chain, machine.state, 0)]
        self.rows = [dict(state_rows.rows_of(machine))]

        def load(carried: payload.Payload) -> bytes:
            return carried.inline if carried.inline is not None else loaded[carried.ref or b""]

        for step in replay.steps(entries):
            if branch.owner(step[0].height) is not owner:  # a fork goes on over the rows of its parent
                owner = branch.owner(step[0].height)
                rows = state_rows.rows_of(machine)
                machine.close()
                machine = state_rows.machine_of(app, self.heads[-1].state, rows, owner.at)
            replay.check(machine, step, owner.at, load, PARTS)
            last = step[-1]
            self.heads.append(journal.Head(last.step, last.height, last.chain, last.state, last.time_us))
            self.rows.append(dict(state_rows.rows_of(machine)))
        machine.close()

    def step_at(self, height: int) -> int:
        """The last step that ends at or below a height."""
        return max(number for number, head in enumerate(self.heads) if head.height <= height)

    def machine(self, step: int) -> Machine:
        rows = sorted(self.rows[step].items())
        return state_rows.machine_of(app, self.heads[step].state, rows, self.branch.at)

    def common(self, other: Model, mine: int, theirs: int) -> int:
        """The last step, of those up to these two, that is the same in both."""
        count = 0
        for left, right in zip(self.heads[: mine + 1], other.heads[: theirs + 1], strict=False):
            if left.chain != right.chain or left.height != right.height:
                break
            count = left.step
        return count


async def model_of(branch: Branch) -> Model:
    """From the journals as they are: each world's own part is read from its own journal alone."""
    universe = branch.world._universe
    entries: list[journal.JournalEntry] = []
    for each in path(branch):
        below = each.height if each.parent is not None else 0
        own = [entry for entry in await each.world.journal(limit=1_000_000) if entry.height > below]
        entries = [*(entry for entry in entries if entry.height <= below), *own]
    loaded = await world_restore.load_referenced(universe.blobs, entries)
    return Model(branch, [world_restore.filled(entry, loaded) for entry in entries], loaded)


def path(branch: Branch) -> list[Branch]:
    """The worlds that a world comes from, the first one first, and itself."""
    return [branch] if branch.parent is None else [*path(branch.parent), branch]


Rows = dict[bytes, Row]
