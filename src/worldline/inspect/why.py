"""`worldline why`: what a world waits for, since when, what went wrong last, and the command that unblocks it.

All of it is in the store, and no program is needed: status, lease, inbox, open work, dead letters; what a run waits for
and why one is blocked is in the state, which is data. Reasons that need a person come first: a world that cannot go on
is never reported as one that only waits.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from worldline.base import errors, grammar
from worldline.client import dead_letters, listing
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.inspect import block_times, repair_advice, store_queries
from worldline.inspect.entry_text import when
from worldline.kernel import run_operations
from worldline.kernel.execution import divergence_report
from worldline.kernel.machine import Machine
from worldline.kernel.rows.row_records import ENDED, Op, Record, RunStatus
from worldline.kernel.run_operations import OpKind
from worldline.layers import inbox as inboxes
from worldline.layers import work as works
from worldline.model import ids
from worldline.model.traces import StepTraces, TraceSource
from worldline.model.work import WorkKind, WorkState
from worldline.model.world_records import Status, WorldMeta
from worldline.runtime import daemon_threads, quarantine, traceback_reader, worker_labels, world_holders
from worldline.runtime.feature_reasons import AskedWorld, FeatureReasons, Reason
from worldline.worker import no_asyncio

OPEN_SHOWN_MAX = 100
DEAD_SHOWN_MAX = 10
FAILED_SHOWN_MAX = 3
LINES_MAX = 8  # of what waits for a person, where runs are listed
CODE_SECONDS_MAX = 5.0  # for a workflow's code that is run again to see which arguments it passes


class WaitingRun(msgspec.Struct, frozen=True):
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
    pending_cancel: str = ""
    operations: list[repair_advice.Operation] = []
    ways: list[str] = []
    trace: str = ""  # where in its code it failed
    note: str = ""  # what could not be looked at
    correlation: str = ""  # what its starter calls what it belongs to


class RunFailurePlace(msgspec.Struct, frozen=True):
    """A run that failed, and where in its code."""

    run: str
    step: int
    time: datetime
    trace: str
    command: str


class Why(msgspec.Struct, frozen=True):
    world: str
    status: str
    height: int
    reasons: list[Reason]
    note: str = ""  # what could not be looked at
    failed: list[RunFailurePlace] = []  # what ended so last; nothing waits for it


async def why(world: Handle, *, option: str = "") -> Why:
    """Everything that a world waits for. `option`: what the suggested commands need besides."""
    connection, at = world.connection, await world.address()
    meta = (await world.describe()).meta
    head = await world.head()
    opened = [each async for each in store_queries.open_work(connection, at)]
    engine = connection.store.engine
    asking = WhyQuestion(engine, at, shlex.quote(meta.name), option, connection)
    reasons = [each for feature in connection.store.features for each in feature.reasons]
    found = await _status(asking, reasons, at, meta.status)
    unread = await store_queries.count(connection, inboxes.read_range(at, count_max=1_000))
    machine, fault, note = await _machine(asking, world)
    if meta.status is Status.ACTIVE:
        found += await _trial(asking, at)
        # What keeps workers from running it explains why none does, so only one of the two is said.
        found += await _running(asking, at, fault) or await _not_hosted(asking, at, meta, unread, opened)
        found += await _assigned(asking, at, unread)
    kept = await traceback_reader.of_world(engine, at)
    found += await _unproved(asking, at) + await _dead(asking, at, kept)
    for each in reasons:
        found += await each.of_universe(asking)
    effects: Mapping[ids.IntentId, Reason] = {each.intent: _open(asking, each) for each in opened[:OPEN_SHOWN_MAX]}
    if machine is not None:
        found += await _runs(asking, world, machine)
        for each in reasons:
            found += each.of_state(asking, machine)
            effects = each.of_effects(asking, machine, effects)
    found += effects.values()
    if unread:
        found.append(Reason("inbox", f"{grammar.count(unread, 'unread input')}"))
    found.sort(key=lambda each: not each.stuck)  # stable: within both halves the order of the questions above remains
    return Why(meta.name, meta.status.name.lower(), head.height, found, note, _failed(asking, kept))


def for_a_person(found: Why) -> list[str]:
    """Return what waits for a person, or fails again and again, in a line each: why, and the command to type."""
    stuck = [each for each in found.reasons if each.stuck or each.kind == "retrying"]
    lines = [
        f"{each.what}{f': {each.error.splitlines()[0]}' if each.error else ''}; type `{each.command}`"
        for each in stuck[:LINES_MAX]
    ]
    more = len(stuck) - LINES_MAX
    return [*lines, f"{more} more: see `worldline why {shlex.quote(found.world)}`"] if more > 0 else lines


class WhyQuestion(AskedWorld, frozen=True):
    """What `why` is asked, with the universe of the world."""

    universe: Connection


async def _machine(asking: WhyQuestion, world: Handle) -> tuple[Machine | None, list[Reason], str]:
    """The world's state, if its stored bytes are right; else why not, which counts unless a worker runs it all the
    same.
    """
    try:
        return await world.machine(), [], ""
    except errors.KeyDestroyed as error:
        fault = Reason(
            "erased", "it was erased", True, error=str(error), command=asking.command(f"delete {asking.name}")
        )
        return None, [fault], "its state was erased"
    except errors.Corrupt as error:
        what = "it cannot be run: stored bytes are not what was written; restore the store from a backup"
        fault = Reason("damaged", what, True, error=str(error), command=asking.command(f"verify {asking.name}"))
        return None, [fault], f"its state cannot be read: {error}"


async def _status(
    asking: WhyQuestion, reasons: Sequence[FeatureReasons], at: ids.Address, status: Status
) -> list[Reason]:
    if status is Status.ACTIVE:
        return []
    name = status.name.lower()
    found = await store_queries.quarantined(asking.universe, at, status)
    if found is not None:
        # The store's clock: it is the one that ends the quarantine.
        now_us = (await asking.universe.store.engine.read()).time_us
        again = quarantine.when(found, now_us=now_us) if found.until_us else "fix the cause, then resume it"
        what = f"it is quarantined: {quarantine.reason(found)}; {again}"
        return [Reason("quarantined", what, True, command=asking.command(f"resume {asking.name}"))]
    said = ""
    for each in reasons:
        said = said or await each.of_status(asking)
    return [Reason(name, said or f"it is {name}", True, command=asking.command(f"resume {asking.name}"))]


async def _trial(asking: WhyQuestion, at: ids.Address) -> list[Reason]:
    """Say that steps over its next input did not end cleanly."""
    found = await store_queries.trial_of(asking.universe, at)
    if found is None:
        return []
    said: list[Reason] = []
    deaths: list[str] = []
    if found.step_deaths:
        counted = (
            f"{_times(found.step_deaths)} a process died, hung or ran out of memory in the step over its next input"
        )
        deaths.append(f"{counted}{quarantine.blamed(found)}; it is tried again")
    if found.acquitted:
        times = "once" if found.acquitted == 1 else f"{found.acquitted} times"
        deaths.append(f"{times} its next input was tried in a child process after such deaths, and survived")
    if deaths:
        said.append(Reason("trial", "; ".join(deaths)))
    if found.raised is not None:
        what = (
            f"{_times(found.raised.times)} the step over its next input raised, in worldline itself; it is tried again"
        )
        said.append(Reason("trial", what, error=found.raised.said))
    return said


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times in a row"


async def _running(asking: WhyQuestion, at: ids.Address, fault: list[Reason]) -> list[Reason]:
    """Say what keeps it from being run: workers refuse it, or its code or its bytes are wrong and no worker runs it."""
    holder = await world_holders.find(asking.universe.store, at)
    running = None if holder is None or not holder.alive else holder.worker
    return await _refused(asking, at, running) or (fault if running is None else [])


async def _not_hosted(
    asking: WhyQuestion, at: ids.Address, meta: WorldMeta, unread: int, opened: list[works.Open]
) -> list[Reason]:
    """Say that no process hosts it, if one is needed."""
    holder = await world_holders.find(asking.universe.store, at)
    if holder is not None and holder.alive:
        return []
    now_us = (await asking.universe.store.engine.read()).time_us
    # Work that is not due yet needs no host now, and a world that waits for tomorrow is not stuck.
    due = [each for each in opened if each.work.state in works.CLAIMABLE and each.work.due_us <= now_us]
    waits = unread + len(due)
    # Nothing to do and no holder is how an idle world looks; a dead holder is said even so.
    if not waits and holder is None:
        return []
    since = None if holder is None else _when(holder.heartbeat_us)
    gone = "no process hosts it" if holder is None else f"its worker {holder.worker.hex()[:8]} is dead"
    counts = [(unread, "unread input"), (len(due), "due job")]
    waiting = " and ".join(grammar.count(count, noun) for count, noun in counts if count)
    what = f"{gone}, and work waits: {waiting}" if waits else gone
    labels = [name for name in meta.labels if worker_labels.places(name)]
    where = f", where its labels allow: {', '.join(f'{name}={meta.labels[name]}' for name in labels)}" if labels else ""
    said = f"{what}; host program {meta.program!r}{where}"
    return [Reason("not_hosted", said, stuck=bool(waits), since=since, command=asking.command("dev FILE"))]


async def _assigned(asking: WhyQuestion, at: ids.Address, unread: int) -> list[Reason]:
    """Say that it is assigned to a worker which does not run it. It is stuck if it waits for that one alone."""
    wanted = await world_holders.assigned(asking.universe.store, at)
    holder = await world_holders.find(asking.universe.store, at)
    running = holder is not None and holder.alive
    if wanted is None or (running and holder is not None and holder.worker == wanted.worker):
        return []
    what = f"it is assigned to worker {wanted.name} ({wanted.reason})"
    what += f", which {wanted.void}: any other may run it" if wanted.void else ", and no other takes it"
    stuck = bool(unread) and not running and not wanted.void
    return [Reason("assigned", what, stuck, command=asking.command(f"lease unassign {asking.name}"))]


async def _refused(asking: WhyQuestion, at: ids.Address, running: ids.WorkerId | None) -> list[Reason]:
    """Say what live workers report of a world that they cannot run. It is stuck unless another worker runs it."""
    found: list[Reason] = []
    for each in await world_holders.refusals_of(asking.universe.store, at):
        stuck = running in (None, each.worker)  # a refusal of one worker does no harm while another one runs the world
        what = f"worker {each.name} cannot run it and leaves it alone; to have it tried at once, pause and resume it"
        command = f"{asking.command(f'pause {asking.name}')} && {asking.command(f'resume {asking.name}')}"
        found.append(Reason("refused", what, stuck, error=each.why, command=command))
    return found


async def _unproved(asking: WhyQuestion, at: ids.Address) -> list[Reason]:
    """Say what workers found when they ran its journal again in the background. The world continues all the same."""
    command = asking.command(f"replay {asking.name} --prove")
    return [
        Reason("unproved", f"it goes on, but worker {each.name} could not prove it", error=each.why, command=command)
        for each in await world_holders.divergences_of(asking.universe.store, at)
    ]


async def _dead(asking: WhyQuestion, at: ids.Address, kept: list[StepTraces]) -> list[Reason]:
    found: list[Reason] = []
    by_step = {each.step: each.traces for each in kept}
    total = await store_queries.count(asking.universe, inboxes.dead_range(at, count_max=1_000))
    async for letter in dead_letters.letters(asking.universe, at):
        row = store_queries.dead_row(letter, asking.name)
        more = f" (one of {total})" if total > 1 else ""
        command = asking.command(f"dead retry {asking.name} {row.id}")
        trace = traceback_reader.find(by_step.get(row.step, []), TraceSource.HANDLER)
        what = f"dead letter {row.id}{more}"
        found.append(Reason("dead", what, True, "", row.time, None, row.reason, command, trace))
        if len(found) >= DEAD_SHOWN_MAX:  # the newest first, and the total is in each line
            break
    return found


def _failed(asking: WhyQuestion, kept: list[StepTraces]) -> list[RunFailurePlace]:
    """The runs that failed last."""
    found: list[RunFailurePlace] = []
    for each in kept:
        for trace in each.traces:
            if trace.source is TraceSource.RUN and len(found) < FAILED_SHOWN_MAX:
                command = asking.command(f"runs show {asking.name} {trace.subject}")
                found.append(RunFailurePlace(trace.subject, each.step, when(each.time_us), trace.text, command))
    return found


def _open(asking: WhyQuestion, opened: works.Open) -> Reason:
    work, short = opened.work, opened.intent.hex()[:12]
    since, due, run = when(work.opened_us), when(work.due_us), work.correlation
    if work.kind is WorkKind.TIMER:
        return Reason("timer", f"timer {work.name} {short}", False, run, since, due)
    retry = asking.command(f"effect retry {short}")
    name = f"effect {work.name} {short}"
    match work.state:
        case WorkState.PARKED:
            what = f"{name}, parked after {grammar.count(work.attempt, 'attempt')}"
            ways = repair_advice.of_effect(asking.command, short, parked=True)
            return Reason("parked", what, True, run, since, None, work.error, retry, work.trace, ways)
        case WorkState.CLAIMED:
            what = f"{name}, attempt {work.attempt} is running on worker {work.worker.hex()[:8]}"
            return Reason("running", what, False, run, since, None, work.error, trace=work.trace)
        case WorkState.SETTLED:
            return Reason("answered", f"{name}, answered; the answer waits in the inbox", False, run, since)
        case WorkState.SENT:
            return Reason("asked", f"{name}, delivered; the answer of the other world is awaited", False, run, since)
        case _ if work.attempt:
            what = f"{name}, attempt {work.attempt} failed"
            return Reason("retrying", what, False, run, since, due, work.error, retry, work.trace)
        case _:
            return Reason("effect", f"{name}, not tried yet", False, run, since, due)


# --- Runs ------------------------------------------------------------------------------------------------------


async def _runs(asking: WhyQuestion, world: Handle, machine: Machine) -> list[Reason]:
    found: list[Reason] = []
    records = [run.record for run in machine.live_runs()]
    # One walk over the journal for all blocked runs, as each of them could lead far back.
    blocked_us = await block_times.of_runs(world, [each.id for each in records if each.status is RunStatus.BLOCKED])
    for record in records:
        if record.status is RunStatus.BLOCKED:
            found.append(_blocked_run(asking, world.name, record, _when(blocked_us.get(record.id))))
            continue  # what it waits for does not matter until its code fits
        found += [_waiting(asking, record, op) for op in record.ops if op.outcome is None and op.kind in _WAITS]
    return found


def _blocked_run(asking: WhyQuestion, world: str, record: Record, since: datetime | None) -> Reason:
    what = f"run {record.id} ({record.workflow}) is blocked: the code does not fit its record"
    waiting = repair_advice.pending_cancel(record)
    what += f"; {waiting}" if waiting else ""
    ways = repair_advice.of_run(asking.command, asking.name, record)
    report = divergence_report.addressed(record.blocked, world)
    return Reason("blocked", what, True, record.id, since, None, report, ways[0], ways=ways)


def _waiting(asking: WhyQuestion, record: Record, op: Op) -> Reason:
    what = f"run {record.id} ({record.workflow}) waits for {_describe(record, op)}"
    match op.kind:
        case OpKind.WAIT:
            command = asking.command(f"send {asking.name} {op.name} ... --to {record.id}")
        case OpKind.ASK | OpKind.SEND:
            command = asking.command(f"why {op.name}")
        case OpKind.ACT:
            command = asking.command(f"trace {asking.name} --domain {op.name.partition('.')[0]}")
        case _:
            command = asking.command(f"runs show {asking.name} {_child(record, op)}")
    return Reason(op.kind.name.lower(), what, False, record.id, _asked_at(record, op), command=command)


_WAITS = (OpKind.WAIT, OpKind.CHILD, OpKind.START, OpKind.ASK, OpKind.SEND, OpKind.ACT)


def _describe(record: Record, op: Op) -> str:
    return run_operations.describe(op.kind, op.name, run=record.id, number=record.ops.index(op))


def _child(record: Record, op: Op) -> str:
    return f"{record.id}/{record.ops.index(op)}"


def _asked_at(record: Record, op: Op) -> datetime:
    """When the code asked for an operation: at its start, or in the feeding of this number."""
    return when(record.log[op.fed - 1].time_us if 0 < op.fed <= len(record.log) else record.started_us)


async def list_runs(world: Handle) -> list[WaitingRun]:
    """A world's runs, the newest first, from its state."""
    return [_run_of(record, world.name) for record in (await listing.runs(world))[0]]


def _run_of(record: Record, name: str) -> WaitingRun:
    waits = [_describe(record, op) for op in record.ops if op.outcome is None and op.kind is not OpKind.AFTER]
    ended = when(record.ended_us) if record.status in ENDED else None
    return WaitingRun(
        record.id,
        record.workflow,
        record.status.name.lower(),
        when(record.started_us),
        ended,
        record.args,
        record.data,
        record.parent,
        waits,
        divergence_report.addressed(record.blocked, name),
        repair_advice.pending_cancel(record),
        repair_advice.operations(record),
        repair_advice.of_run("worldline {}".format, shlex.quote(name), record),
        correlation=record.correlation_id,
    )


def _when(time_us: int | None) -> datetime | None:
    return None if time_us is None else when(time_us)


async def find_run(world: Handle, run_id: str) -> WaitingRun:
    """One run, with the arguments that its code passes now where they are others. For that its code runs here, in a
    thread of its own and for a while at most; unless this process hosts the world.
    """
    for run in await list_runs(world):
        if run.id == run_id and run.status == "failed":
            trace = await traceback_reader.of_run(world.connection.store.engine, await world.address(), run_id)
            return msgspec.structs.replace(run, trace=trace)
        if run.id == run_id:
            differing, note = await _differences(world, run_id)
            shown = [
                msgspec.structs.replace(each, differs=differing.get(each.number - 1, "")) for each in run.operations
            ]
            return msgspec.structs.replace(run, operations=shown, note=note)
    raise errors.NotFound(f"world {world.name!r} has no run {run_id!r}")


async def _differences(world: Handle, run_id: str) -> tuple[dict[int, str], str]:
    """By operation; and why they are not known. The machine is one of its own: code that does not return keeps it."""
    # A host does not run users' code for a look: code that does not return would take time from its worlds.
    if world.connection.host is not None:
        return {}, ""
    # At a height, so it is a machine of this call: the one at the head is shared with other readers.
    machine = await world.machine(at=(await world.head()).height)
    try:
        found = await daemon_threads.run_within(
            CODE_SECONDS_MAX, repair_advice.differences, machine, run_id, initializer=no_asyncio.refuse_asyncio
        )
    except daemon_threads.Overdue as error:
        return {}, f"the arguments that its code passes now are not known: {error}"
    return found, ""
