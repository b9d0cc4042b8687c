"""What the programs of the campaign promise when all is over: every operation was answered, and its traces are in the
worlds, once.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from tests.campaign.load import hostile, programs, sketches, workloads
from worldline.api.world_api import World
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.kernel import part_inputs
from worldline.keys import work as work_keys
from worldline.model.work import WorkState
from worldline.sim.check.audit import Audit
from worldline.sim.load.history import ClientOutcome
from worldline.sim.runtime import keyspaces

# How often an anonymous operation may count, by how it ended.
TIMES = {ClientOutcome.ACKED: (1,), ClientOutcome.UNCERTAIN: (0, 1), ClientOutcome.REFUSED: (0,)}


class Kept(msgspec.Struct, frozen=True):
    """What is known when all is over: the worlds (name and program), what was asked and answered, what the store holds,
    and what happened outside, by service and key.
    """

    worlds: dict[str, str]
    ops: list[workloads.Op]
    answered: dict[str, object]
    contents: dict[bytes, bytes]
    done: dict[tuple[str, str], object]

    def of(self, program: str) -> list[str]:
        return [name for name, its in self.worlds.items() if its == program]


async def promises(connection: Connection, kept: Kept, audit: Audit) -> None:
    """Every operation was answered; its traces must be in the worlds, once."""
    for name in kept.of("counters"):
        await _counted(connection, name, kept, audit)
    for name in kept.of("hostiles"):
        await _survived(connection, name, kept, audit)
    if kept.of("bank"):
        await _conserved(connection, kept, audit)
    if not any(op.kind == "doom" for op in kept.ops):
        _paid(kept, audit)
    for op in kept.ops:
        if op.id not in kept.answered:
            audit.broken("J1", f"operation {op.id} was never answered")
    await _drawn(connection, kept, audit)
    _queue_is_derived(kept, audit)


async def _drawn(connection: Connection, kept: Kept, audit: Audit) -> None:
    """Sketches that were kept hold their text."""
    for op in kept.ops:
        if op.kind == "sketch" and op.to == sketches.KEPT:
            sketch = await World(connection, op.world).state(sketches.Sketch)
            if sketch.text != sketches.text(sketches.second(op)):
                audit.broken("PROGRAM", f"{op.world} does not hold its text")


async def _counted(connection: Connection, name: str, kept: Kept, audit: Audit) -> None:
    """What counts, counts once; poison counts nothing and lies with the dead letters, once."""
    counter = await World(connection, name).state(programs.Counter)
    ops = [op for op in kept.ops if op.world == name]
    for op in ops:
        times = counter.ids.get(op.id, 0)
        if op.kind in workloads.COUNTED and times != 1:
            audit.broken("J1", f"{name}: operation {op.id} counted {times} times")
        elif op.kind in workloads.ANONYMOUS and times not in TIMES[ClientOutcome(str(kept.answered[op.id]))]:
            audit.broken("ONCE", f"{name}: {op.kind} {op.id} ended {kept.answered[op.id]} and counted {times} times")
    if counter.total != sum(op.amount * counter.ids.get(op.id, 0) for op in ops):
        audit.broken("PROGRAM", f"{name}: the total is {counter.total}")
    await _buried(connection, name, sum(op.kind == "poison" for op in ops), kept, audit)


async def _survived(connection: Connection, name: str, kept: Kept, audit: Audit) -> None:
    """Of a hostile program: what met no memory counts once, what raised is a dead letter."""
    victim = await World(connection, name).state(hostile.Victim)
    ops = [op for op in kept.ops if op.world == name]
    if victim.ids != {op.id: 1 for op in ops if op.kind == "starved"}:
        audit.broken("J1", f"{name}: counted {victim.ids}")
    await _buried(connection, name, sum(op.kind == "evil" for op in ops), kept, audit)


async def _buried(connection: Connection, name: str, count: int, kept: Kept, audit: Audit) -> None:
    at = await Handle(connection, name).address()
    dead = sum(where.what == "dead" and where.at == at for where in map(keyspaces.place, kept.contents))
    if dead != count:
        audit.broken("V2", f"{name}: {dead} dead letters instead of {count}")


async def _conserved(connection: Connection, kept: Kept, audit: Audit) -> None:
    held = {name: await World(connection, name).state(programs.Account) for name in kept.of("bank")}
    total = sum(account.balance for account in held.values())
    if total != programs.OPENING * len(held):
        audit.broken("PROGRAM", f"the bank holds {total} instead of {programs.OPENING * len(held)}")
    for op in kept.ops:
        if op.kind in ("transfer", "remit"):
            arrived = held[op.to].transfers.get(op.id, 0)
            if arrived != int(kept.answered.get(op.id) is True):
                audit.broken("PROGRAM", f"transfer {op.id} arrived {arrived} times")


def _paid(kept: Kept, audit: Audit) -> None:
    """Each order is one charge, and one parcel or one refund."""
    ops = [op for op in kept.ops if op.kind == "order"]
    done = Counter(service for service, _ in kept.done)
    answers = Counter(kept.answered.get(op.id) for op in ops)
    if done["charge"] != len(ops) or done["refund"] != answers["refunded"] or done["ship"] < answers["shipped"]:
        audit.broken("PROGRAM", f"{len(ops)} orders were answered {dict(answers)}, outside happened {dict(done)}")


def _queue_is_derived(kept: Kept, audit: Audit) -> None:
    """E2 at rest: nothing is open, so nothing may be in the queue but pointers whose authority is gone. What forks
    share may wait for what is parked (W3).
    """
    for key, value in kept.contents.items():
        work = work_keys.WORK.unpack(value) if keyspaces.place(key).what == "open" else None
        if work is not None and work.state is not WorkState.PARKED and work.name != part_inputs.SHARE:
            audit.broken("E2", "work is open in a world that has nothing to do")
