"""A program whose code changes while its runs are under way, that is not deterministic, and that ends its processes.

There are several versions of it (`VERSIONS`), all under one name. In `first` everything is there; in others a workflow
was edited before, at or after the operation that its runs wait for, or removed, and a reducer has one field more. In
`mended` no workflow ends its process any more, and all are deterministic.

An input is deadly so many times: the process that takes it ends right there, as by kill -9. What is counted is kept
outside of all worlds, as it would be if it depended on the machine; a check at the end, which is on no host, survives.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import worldline as wl
from tests.campaign.load.programs import EFFECT_SECONDS, OUTSIDE, PATIENT
from worldline.sim.load.history import ClientOp
from worldline.sim.runtime.sim_loop import HOST

NAME = "fragile"
ALWAYS = 1_000_000
PAUSE_SECONDS = 4.0  # before a run gets its event: hosts die meanwhile, and their code changes
EVENTS = ("put", "nudge")
RUNS = ("claim", "erratic", "suicidal")
KINDS = (*EVENTS, *RUNS)  # of operations; `amount` is how many times each is deadly
WORLDS = [f"{NAME}-{number}" for number in range(2)]
FIRST = "first"
MENDED = "mended"
# The operations of the mended code, in order: a run that has recorded no others must go on under it.
OPERATIONS = {
    "claim": ["note", "Nudge", "sleep", "note"],
    "erratic": ["note", "Nudge"],
    "suicidal": ["note", "note"],
}

_deaths: Counter[str] = Counter()
_calls: Counter[str] = Counter()


def begin() -> None:
    """A run of the simulator begins: nothing has been counted."""
    _deaths.clear()
    _calls.clear()


def fatal(id: str, times: int) -> bool:
    """End the process that calls this, so many times in all. True if it goes on."""
    host = HOST.get(None)
    if host is not None and (not host.alive or _deaths[id] < times):
        _deaths[id] += host.alive
        host.die()
    return True


def _is_odd(id: str) -> bool:
    """What no replay repeats."""
    _calls[id] += 1
    return _calls[id] % 2 == 0


@dataclass(frozen=True)
class Put:
    """`times`: that many processes end over it."""

    id: str
    times: int = 0


@dataclass(frozen=True)
class Nudge:
    run: str
    id: str
    times: int = 0


def _first_reducer(app: wl.Program) -> None:
    @app.reducer(name="Ledger")
    @dataclass
    class Ledger:
        ids: dict[str, int] = field(default_factory=dict)

        @wl.on
        def put(self, event: Put) -> None:
            fatal(event.id, event.times)
            self.ids[event.id] = self.ids.get(event.id, 0) + 1

        @wl.on
        def nudge(self, event: Nudge) -> None:
            """So that it is no dead letter where no run waits for it."""


def _later_reducer(app: wl.Program) -> None:
    @app.reducer(name="Ledger")
    @dataclass
    class Ledger:
        ids: dict[str, int] = field(default_factory=dict)
        count: int = 0

        @wl.on
        def put(self, event: Put) -> None:
            fatal(event.id, event.times)
            self.ids[event.id] = self.ids.get(event.id, 0) + 1
            self.count += 1

        @wl.on
        def nudge(self, event: Nudge) -> None:
            """So that it is no dead letter where no run waits for it."""


def _wakes(event: Nudge, run: str) -> bool:
    return fatal(event.id, event.times) and event.run == run


def _claim(app: wl.Program, note: Any, version: str) -> None:
    """The workflow that is edited and removed. Every version of it waits for the same event."""

    async def first(id: str) -> str:
        await note(id, "begins")
        await wl.wait(Nudge, where=lambda each: _wakes(each, id))
        await wl.sleep(0.3)
        await note(id, "ends")
        return f"{id} done"

    async def before(id: str) -> str:
        await wl.sleep(0.1)
        await note(id, "begins")
        await wl.wait(Nudge, where=lambda each: _wakes(each, id))
        return f"{id} done"

    async def at(id: str) -> str:
        await note(id, "begins")
        await wl.sleep(0.2)
        await wl.wait(Nudge, where=lambda each: _wakes(each, id))
        return f"{id} done"

    async def after(id: str) -> str:
        await note(id, "begins")
        await wl.wait(Nudge, where=lambda each: _wakes(each, id))
        await note(id, "ends")
        return f"{id} done"

    edited = {"before": before, "at": at, "after": after}
    if version != "removed":
        app.workflow(name="claim")(edited.get(version, first))


def _bad(app: wl.Program, note: Any) -> None:
    @app.workflow(name="erratic")
    async def erratic(id: str) -> str:
        if _is_odd(id):
            await wl.sleep(0.1)
        await note(id, "begins")
        await wl.wait(Nudge, where=lambda each: _wakes(each, id))
        return f"{id} done"

    @app.workflow(name="suicidal")
    async def suicidal(id: str, times: int) -> str:
        await note(id, "begins")
        fatal(id, times)
        await note(id, "ends")
        return f"{id} done"


def _good(app: wl.Program, note: Any) -> None:
    @app.workflow(name="claim")
    async def claim(id: str) -> str:
        await note(id, "begins")
        await wl.wait(Nudge, where=lambda each: each.run == id)
        await wl.sleep(0.3)
        await note(id, "ends")
        return f"{id} done"

    @app.workflow(name="erratic")
    async def erratic(id: str) -> str:
        await note(id, "begins")
        await wl.wait(Nudge, where=lambda each: each.run == id)
        return f"{id} done"

    @app.workflow(name="suicidal")
    async def suicidal(id: str, times: int) -> str:
        await note(id, "begins")
        await note(id, "ends")
        return f"{id} done"


def _made(version: str) -> wl.Program:
    app = wl.Program(NAME)

    @app.effect(name="note", retry=PATIENT, timeout=EFFECT_SECONDS)
    async def note(id: str, what: str) -> str:
        await OUTSIDE.get().call("note", f"{id} {what}")
        return what

    (_first_reducer if version in (FIRST, "before") else _later_reducer)(app)
    if version == MENDED:
        _good(app, note)
    else:
        _claim(app, note, version)
        _bad(app, note)
    return app


VERSIONS = {version: _made(version) for version in (FIRST, "before", "at", "after", "removed", MENDED)}
# Now, while nothing is counted: a hash takes in what the dicts hold that the code mentions, and it is made only once.
assert all(program.hash for program in VERSIONS.values())
EDITED = [version for version in VERSIONS if version != MENDED]


def plan(client: str, draws: random.Random) -> list[ClientOp]:
    """Some operations, of which few are deadly, and one or two without end."""
    deadly = [ALWAYS, 1, draws.choice([1, 2, ALWAYS])]
    kinds = ["claim", "put", "claim", draws.choice(RUNS), "put", draws.choice(RUNS)]
    ops: list[ClientOp] = []
    for number, kind in enumerate(kinds):
        id, world = f"{client}-{number}", draws.choice(WORLDS)
        can_die = kind in ("put", "suicidal") and deadly
        ops.append(ClientOp(id, kind, world, deadly.pop() if can_die else 0))
    for op in [each for each in ops if each.kind in ("claim", "erratic")]:
        times = deadly.pop() if deadly and draws.random() < 0.3 else 0
        ops.insert(
            draws.randint(ops.index(op) + 2, len(ops) + 1), ClientOp(f"nudge-{op.id}", "nudge", op.world, times, op.id)
        )
    return ops


def event(op: ClientOp) -> Put | Nudge:
    """What an operation sends."""
    return Put(op.id, op.amount) if op.kind == "put" else Nudge(op.to, op.id, op.amount)


def call(op: ClientOp) -> wl.Call[str]:
    """What an operation starts."""
    args = (op.id, op.amount) if op.kind == "suicidal" else (op.id,)
    called: wl.Call[str] = VERSIONS[FIRST].workflows[op.kind](*args)
    return called


def ledger() -> type[Any]:
    """The class of the mended reducer."""
    found: type[Any] = VERSIONS[MENDED].reducers["Ledger"].cls
    return found
