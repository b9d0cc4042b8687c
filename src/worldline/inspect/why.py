"""`worldline why`: what a world waits for, since when, what went wrong last, and the command that unblocks it.

Most of it is in the store and needs no program: status, lease, inbox, open work, dead letters, and which runs a change
of code has blocked. What a run itself waits for (an event, another run, an answer) is in its state, which needs the
program. Reasons that need a person come first: a world that cannot go on is never reported as one that only waits.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from worldline.base import errors, failures
from worldline.client import listing, run_list
from worldline.client.connection import Connection
from worldline.client.handle import Handle
from worldline.host import holders
from worldline.inspect import queries
from worldline.inspect.render import when
from worldline.kernel.operations import OpKind
from worldline.kernel.runs import ENDED, Op, Record, RunStatus
from worldline.kernel.state import Machine
from worldline.layers import inbox as inboxes
from worldline.layers import work as works
from worldline.model import ids
from worldline.model.work import WorkKind, WorkState
from worldline.model.world import Status, WorldMeta
from worldline.roles.cluster import placement

OPEN_SHOWN_MAX = 100
DEAD_SHOWN_MAX = 10


class Reason(msgspec.Struct, frozen=True):
    """One thing that a world waits for. `stuck`: it stays so until a person acts."""

    kind: str
    what: str
    stuck: bool = False
    run: str = ""
    since: datetime | None = None
    until: datetime | None = None  # the next attempt, or the time a timer fires
    error: str = ""
    command: str = ""


class Run(msgspec.Struct, frozen=True):
    """A workflow run, as far as it is known."""

    id: str
    workflow: str
    status: str
    started: datetime
    ended: datetime | None
    args: bytes
    data: bytes  # the result, or the failure
    parent: str
    waits: list[str]
    blocked: str


class Why(msgspec.Struct, frozen=True):
    world: str
    status: str
    height: int
    reasons: list[Reason]
    note: str = ""  # what could not be looked at


async def why(world: Handle, *, option: str = "") -> Why:
    """Everything that a world waits for. `option`: what the suggested commands need besides."""
    universe, at = world.universe, await world.address()
    meta = (await world.describe()).meta
    head = await world.head()
    opened = [each async for each in queries.open_work(universe, at)]
    asking = Asking(universe, meta.name, option)
    found = _status(asking, meta.status)
    unread = await queries.count(universe, inboxes.read_range(at, count_max=1_000))
    machine, fault, note = await _machine(asking, world)
    if meta.status is Status.ACTIVE:
        found += await _running(asking, at, fault) or await _not_hosted(asking, at, meta, unread, opened)
    found += await _dead(asking, at)
    found += _runs(asking, machine) if machine is not None else await _blocked(asking, world)
    found += [_open(asking, each) for each in opened[:OPEN_SHOWN_MAX]]
    if unread:
        found.append(Reason("inbox", f"{unread} unread inputs"))
    found.sort(key=lambda each: not each.stuck)
    return Why(meta.name, meta.status.name.lower(), head.height, found, note)


class Asking(msgspec.Struct, frozen=True):
    """The world that is asked about, and how commands about it are written."""

    universe: Connection
    name: str
    option: str

    def command(self, text: str) -> str:
        return f"worldline {text}{self.option}"


async def _machine(asking: Asking, world: Handle) -> tuple[Machine | None, list[Reason], str]:
    """The world's state, if its program is known here and does what the journal says; else why not.

    A fault says why the world cannot go on, unless a worker runs it all the same: then the code here is the wrong one.
    """
    try:
        return await world.machine(), [], ""
    except errors.NotFound:
        return None, [], "what its runs wait for is in its state, which needs its program: name it with --app FILE"
    except failures.Diverged as error:
        what = "it cannot be run with the code here, which does not do what the journal says; host what wrote it"
        command = asking.command(f"replay {asking.name} --prove")
        fault = Reason("diverged", what, True, error=error.report, command=command)
        return None, [fault], f"its program here does not do what the journal says: {error.report}"
    except errors.Corrupt as error:
        what = "it cannot be run: stored bytes are not what was written; restore the store from a backup"
        fault = Reason("damaged", what, True, error=str(error), command=asking.command(f"verify {asking.name}"))
        return None, [fault], f"its state cannot be read: {error}"


def _status(asking: Asking, status: Status) -> list[Reason]:
    if status is Status.ACTIVE:
        return []
    name = status.name.lower()
    return [Reason(name, f"it is {name}", True, command=asking.command(f"resume {asking.name}"))]


async def _running(asking: Asking, at: ids.Address, fault: list[Reason]) -> list[Reason]:
    """What keeps it from being run: workers refuse it, or its code or its bytes are wrong and no worker runs it."""
    holder = await holders.find(asking.universe.store, at)
    running = None if holder is None or not holder.alive else holder.worker
    return await _refused(asking, at, running) or (fault if running is None else [])


async def _not_hosted(
    asking: Asking, at: ids.Address, meta: WorldMeta, unread: int, opened: list[works.Open]
) -> list[Reason]:  # fmt: skip
    """That no process hosts it, if one is needed."""
    holder = await holders.find(asking.universe.store, at)
    if holder is not None and holder.alive:
        return []
    now_us = (await asking.universe.store.engine.read()).time_us
    due = [each for each in opened if each.work.state in works.CLAIMABLE and each.work.due_us <= now_us]
    waits = unread + len(due)
    if not waits and holder is None:
        return []
    since = None if holder is None else _when(holder.heartbeat_us)
    gone = "no process hosts it" if holder is None else f"its worker {holder.worker.hex()[:8]} is dead"
    what = f"{gone}, and {waits} inputs and pieces of work wait" if waits else gone
    labels = [name for name in meta.labels if placement.places(name)]
    where = f", where its labels allow: {', '.join(f'{name}={meta.labels[name]}' for name in labels)}" if labels else ""
    said = f"{what}; host program {meta.program!r}{where}"
    return [Reason("not_hosted", said, stuck=bool(waits), since=since, command=asking.command("dev FILE"))]


async def _refused(asking: Asking, at: ids.Address, running: ids.WorkerId | None) -> list[Reason]:
    """What living workers say of a world that they cannot run. It is stuck unless another worker runs it."""
    found: list[Reason] = []
    for each in await holders.refusals_of(asking.universe.store, at):
        stuck = running in (None, each.worker)
        what = f"worker {each.name} cannot run it and leaves it alone; to have it tried at once, pause and resume it"
        command = f"{asking.command(f'pause {asking.name}')} && {asking.command(f'resume {asking.name}')}"
        found.append(Reason("refused", what, stuck, error=each.why, command=command))
    return found


async def _dead(asking: Asking, at: ids.Address) -> list[Reason]:
    found: list[Reason] = []
    total = await queries.count(asking.universe, inboxes.dead_range(at, count_max=1_000))
    async for letter in listing.letters(asking.universe, at):
        row = queries.dead_row(letter, asking.name)
        more = f" (one of {total})" if total > 1 else ""
        command = asking.command(f"dead retry {asking.name} {row.id}")
        found.append(Reason("dead", f"dead letter {row.id}{more}", True, "", row.time, None, row.reason, command))
        if len(found) >= DEAD_SHOWN_MAX:
            break
    return found


def _open(asking: Asking, opened: works.Open) -> Reason:
    work, short = opened.work, opened.intent.hex()[:12]
    since, due, run = when(work.opened_us), when(work.due_us), work.correlation
    if work.kind is WorkKind.TIMER:
        return Reason("timer", f"timer {work.name} {short}", False, run, since, due)
    retry = asking.command(f"effect retry {short}")
    name = f"effect {work.name} {short}"
    match work.state:
        case WorkState.PARKED:
            what = f"{name}, parked after {work.attempt} attempts"
            return Reason("parked", what, True, run, since, None, work.error, retry)
        case WorkState.CLAIMED:
            what = f"{name}, attempt {work.attempt} is running on worker {work.worker.hex()[:8]}"
            return Reason("running", what, False, run, since, None, work.error)
        case WorkState.SETTLED:
            return Reason("answered", f"{name}, answered; the answer waits in the inbox", False, run, since)
        case _ if work.attempt:
            what = f"{name}, attempt {work.attempt} failed"
            return Reason("retrying", what, False, run, since, due, work.error, retry)
        case _:
            return Reason("effect", f"{name}, not tried yet", False, run, since, due)


# --- Runs ------------------------------------------------------------------------------------------------------


def _runs(asking: Asking, machine: Machine) -> list[Reason]:
    found: list[Reason] = []
    for run in machine.live_runs():
        record = run.record
        if record.status is RunStatus.BLOCKED:
            found.append(_blocked_run(asking, record.id, record.workflow, _since(record), record.blocked))
            continue
        found += [_waiting(asking, record, op) for op in record.ops if op.outcome is None and op.kind in _WAITS]
    return found


def _blocked_run(asking: Asking, run: str, workflow: str, since: datetime, why: str) -> Reason:
    what = f"run {run} ({workflow}) is blocked: the code does not fit its record"
    command = asking.command(f"runs cancel {asking.name} {run}")
    return Reason("blocked", what, True, run, since, None, why, command)


async def _blocked(asking: Asking, world: Handle) -> list[Reason]:
    """The blocked runs that the journal tells of."""
    try:
        told, _ = await run_list.from_journal(world)
    except errors.Corrupt:
        return []  # said already
    blocked = [each for each in told if each.status is RunStatus.BLOCKED]
    return [_blocked_run(asking, each.id, each.workflow, when(each.started_us), each.blocked) for each in blocked]


def _waiting(asking: Asking, record: Record, op: Op) -> Reason:
    what = f"run {record.id} ({record.workflow}) waits for {_describe(record, op)}"
    match op.kind:
        case OpKind.WAIT:
            command = asking.command(f"send {asking.name} {op.name} ... --to {record.id}")
        case OpKind.ASK | OpKind.SEND:
            command = asking.command(f"why {op.name}")
        case _:
            command = asking.command(f"runs show {asking.name} {_child(record, op)}")
    return Reason(op.kind.name.lower(), what, False, record.id, _since(record), command=command)


_WAITS = (OpKind.WAIT, OpKind.CHILD, OpKind.START, OpKind.ASK, OpKind.SEND)


def _describe(record: Record, op: Op) -> str:
    match op.kind:
        case OpKind.WAIT:
            return f"event {op.name}"
        case OpKind.ASK:
            return f"an answer of world {op.name}"
        case OpKind.SEND:
            return f"world {op.name} to take a message"
        case OpKind.CHILD | OpKind.START:
            return f"run {_child(record, op)} ({op.name})"
        case OpKind.EFFECT:
            return f"effect {op.name}"
        case _:
            return f"timer {op.name}"


def _child(record: Record, op: Op) -> str:
    return f"{record.id}/{record.ops.index(op)}"


def _since(record: Record) -> datetime:
    return when(record.log[-1].time_us if record.log else record.started_us)


async def list_runs(world: Handle) -> list[Run]:
    """A world's runs, the newest first: from its state if its program is known here, else from its journal."""
    told, _ = await run_list.from_journal(world)
    try:
        machine = await world.machine()
    except (errors.NotFound, failures.Diverged):
        return [_run(each) for each in told]
    ends = {each.id: each.ended_us for each in told}
    records = sorted((run.record for run in machine.runs.values()), key=lambda each: each.number, reverse=True)
    return [_run_of(record, ends.get(record.id)) for record in records]


def _run(run: run_list.Listed) -> Run:
    return Run(
        run.id, run.workflow, run.status.name.lower(), when(run.started_us), _when(run.ended_us), run.args, run.data,
        run.parent, [], run.blocked,
    )  # fmt: skip


def _run_of(record: Record, ended_us: int | None) -> Run:
    waits = [_describe(record, op) for op in record.ops if op.outcome is None and op.kind is not OpKind.AFTER]
    ended = _when(ended_us) if record.status in ENDED else None
    return Run(
        record.id, record.workflow, record.status.name.lower(), when(record.started_us), ended, record.args,
        record.data, record.parent, waits, record.blocked,
    )  # fmt: skip


def _when(time_us: int | None) -> datetime | None:
    return None if time_us is None else when(time_us)


async def find_run(world: Handle, run_id: str) -> Run:
    for run in await list_runs(world):
        if run.id == run_id:
            return run
    raise errors.NotFound(f"world {world.name!r} has no run {run_id!r}")
