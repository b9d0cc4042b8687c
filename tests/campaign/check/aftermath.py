"""What has become of the fragile program, and its mending: the end of every run that has one.

At rest under the first version, what is always deadly must have been resolved without its code, and nothing is blocked
that the code fits. Then its hosts get the mended version, and what was blocked goes on; a run whose recorded operations
the mended code does not ask for is reset, as a person would do it. In the end every input has counted once or is a dead
letter, and every run has ended as it should: whatever came while it was blocked is not lost.
"""

from __future__ import annotations

import asyncio

from tests.campaign.hosts import crew as crews
from tests.campaign.load import fragile, workloads
from worldline.api.world_api import World
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.kernel import user_values
from worldline.kernel.machine import Machine
from worldline.kernel.rows.row_records import Record, RunStatus
from worldline.sim.check.audit import Audit
from worldline.sim.hosts.cluster import Cluster
from worldline.sim.load.history import ClientOp
from worldline.sim.runtime import keyspaces

WAKING = "wakes "  # what the ids of events begin with that have the worlds taken by hosts with the mended code
WAY_OUT_SECONDS = 120.0
POISONED = "resolved without running any code"  # in the report of a run that was not continued


async def mend(cluster: Cluster, connection: Connection, audit: Audit) -> list[str]:
    """Check, mend and check again. Returns what is left to do, if that takes too long."""
    if not cluster.profile.fragile:
        return []
    crew = crews.of(cluster)
    ops = [op for op in crew.acted() if op.kind in fragile.KINDS]
    worlds = [name for name, program in crew.worlds if program == fragile.NAME]
    for name in worlds:
        _settled(name, await Handle(connection, name).machine(), _of(name, ops), cluster, audit)
    ops += await _edit(cluster, connection, worlds)
    left = await cluster.quiesce()
    if left:
        return left
    crew.upgrade(fragile.MENDED)
    for name in worlds:
        await _wake(World(connection, name), _of(name, ops), cluster)
    left = await cluster.quiesce()
    for name in worlds:
        if not left:
            await _reset(connection, name, _of(name, ops), audit)
    left = left or await cluster.quiesce()
    for name in worlds:
        if not left:
            await _ended(connection, name, _of(name, ops), cluster, audit)
    return left


async def _edit(cluster: Cluster, connection: Connection, worlds: list[str]) -> list[ClientOp]:
    """Runs that are under way when the code becomes another one, and get what they wait for under that. It may not have
    their workflow any more.
    """
    runs = [ClientOp(f"late-{name}", "claim", name) for name in worlds]
    for op in runs:
        await _do(cluster, connection, op)
    await cluster.quiesce()
    crew = crews.of(cluster)
    crew.upgrade(crew.fragile.drawn("late"))
    nudges = [ClientOp(f"nudge-{run.id}", "nudge", run.world, to=run.id) for run in runs]
    for op in nudges:
        await _do(cluster, connection, op)
    return [*runs, *nudges]


async def _do(cluster: Cluster, connection: Connection, op: ClientOp) -> None:
    history = cluster.history
    history.begin(op, "operator")
    history.answer(op, await workloads.insist(lambda: workloads.do(connection, op, history)))


def _of(name: str, ops: list[ClientOp]) -> list[ClientOp]:
    return [op for op in ops if op.world == name]


def _runs(machine: Machine, ops: list[ClientOp], cluster: Cluster) -> list[tuple[ClientOp, Record]]:
    """The runs that were started, with their records."""
    answered = cluster.history.answered
    started = [op for op in ops if op.kind in fragile.RUNS and answered.get(op.id) == workloads.STARTED]
    return [(op, machine.runs[op.id].record) for op in started if op.id in machine.runs]


def _settled(name: str, machine: Machine, ops: list[ClientOp], cluster: Cluster, audit: Audit) -> None:
    poisoned = cluster.history.poisoned
    for op in ops:
        if op.kind in fragile.EVENTS and not op.amount and op.id in poisoned:
            audit.broken("INNOCENT", f"{name}: {op.kind} {op.id} ends no process, and is a dead letter")
        if op.kind == "put" and op.amount == fragile.ALWAYS and op.id not in poisoned:
            audit.broken("V2", f"{name}: {op.kind} {op.id} ends every process, and is no dead letter")
    if machine.origin.program_hash != fragile.VERSIONS[fragile.FIRST].hash:
        return  # it had nothing to do since the code was the last time another
    for op, record in _runs(machine, ops, cluster):
        blocked = record.status is RunStatus.BLOCKED
        if op.kind == "suicidal" and op.amount == fragile.ALWAYS and record.status is RunStatus.FINISHED:
            audit.broken("PROGRAM", f"{name}: run {op.id} ends every process, and has ended")
        if op.kind == "claim" and blocked and POISONED not in record.blocked and _fits(record):
            audit.broken("PROGRAM", f"{name}: run {op.id} is blocked, and its code fits: {record.blocked}")


def _fits(record: Record) -> bool:
    """Whether the first version and the mended one ask for what was recorded, as far as that goes."""
    recorded = [op.name for op in record.ops]
    return recorded == fragile.OPERATIONS[record.workflow][: len(recorded)]


async def _wake(world: World, ops: list[ClientOp], cluster: Cluster) -> None:
    """An event for the world, and one for every run whose own was never sent or is a dead letter."""
    history = cluster.history
    await world.send(fragile.Put(WAKING + world.name), id=WAKING + world.name)
    nudged = [op.to for op in ops if op.kind == "nudge" and op.id in history.answered and op.id not in history.poisoned]
    for op in ops:
        if op.kind in ("claim", "erratic") and op.id not in nudged:
            await world.send(fragile.Nudge(op.id, f"again {op.id}"), id=f"again {op.id}")


async def _reset(connection: Connection, name: str, ops: list[ClientOp], audit: Audit) -> None:
    machine = await Handle(connection, name).machine()
    for op in ops:
        run = machine.runs.get(op.id)
        if run is None or run.record.status is not RunStatus.BLOCKED:
            continue
        if _fits(run.record):
            audit.broken(
                "PROGRAM", f"{name}: the code of run {op.id} fits, and it does not go on: {run.record.blocked}"
            )
            continue
        async with asyncio.timeout(WAY_OUT_SECONDS):
            await (await World(connection, name).attach(op.id)).reset()


async def _ended(connection: Connection, name: str, ops: list[ClientOp], cluster: Cluster, audit: Audit) -> None:
    poisoned = cluster.history.poisoned
    ledger = await World(connection, name).state(fragile.ledger())
    puts = [op.id for op in ops if op.kind == "put" and op.id in cluster.history.answered]
    expected = {id: 1 for id in [*puts, WAKING + name] if id not in poisoned}
    if ledger.ids != expected:
        audit.broken("J1", f"{name}: counted {ledger.ids} instead of {expected}")
    at = await Handle(connection, name).address()
    dead = sum(where.what == "dead" and where.at == at for where in map(keyspaces.place, cluster.truth.copy))
    buried = [op.id for op in ops if op.kind in fragile.EVENTS and op.id in poisoned]
    if dead != len(buried):
        audit.broken("V2", f"{name}: {dead} dead letters instead of {buried}")
    machine = await Handle(connection, name).machine()
    for op, record in _runs(machine, ops, cluster):
        done = record.status is RunStatus.FINISHED and user_values.load(str, record.data) == f"{op.id} done"
        if not done:
            operations = [each.name for each in record.ops]
            what = f"{record.status.name.lower()} at {operations} {record.blocked}"
            audit.broken("PROGRAM", f"{name}: run {op.id} ({op.kind}) has not ended as it should: {what}")
