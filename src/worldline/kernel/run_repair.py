"""Ways out for runs that do not continue: what a person can do to one run, as journaled commands.

::

    retry       blocked -> running: its code is rebuilt now, and blocks it again if it still does not fit
    reset       live -> running, ended -> running from its start: drops operations, and continues live at the first
    terminate   live -> cancelled, without running any of its code; and the runs that it waits for, too
    answer      an open operation gets an outcome from a person; whatever was open for it is closed. So does one whose
                recorded answer does not fit the code now, if that has blocked its run, which is tried again then

None of them runs user code by itself: runs continue later in the step, as after any other input. Each may be repeated:
what is done already is not done twice, except a reset, which says how often the run was reset before.

A reset keeps the operations before a number, with their outcomes, and the feedings of the code up to the one that
issued the first dropped operation. When the run is rebuilt, that feeding is made again, and the code turns live where
its operations end. What it asked for before stays asked for; what it asks for from there on is asked for again, so it
may happen twice (`twice`): effects, messages, events raised later and runs that it starts. Draws repeat. Events that
dropped waits had taken are at the front of its buffer again. Of the dropped operations, open work is closed, runs that
the code waited for are cancelled, and runs that outlive it continue without it. A cancellation that was delivered
since then is undone; one that still waits keeps waiting. Operations that were cancelled stay cancelled.

Runs that have ended keep no operations: they can be reset to their start alone. An operation that waited for them keeps
the answer it has.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from worldline.base import errors, grammar, limits
from worldline.base.failures import CancelKind
from worldline.codec import canonical, structs
from worldline.kernel import run_driver, run_requests, runs, user_values
from worldline.kernel.execution import divergence_report
from worldline.kernel.machine import Machine
from worldline.kernel.rows.current_step import ENTRY_BYTES
from worldline.kernel.rows.row_records import ENDED, Buffered, Op, Outcome, Pending, PendingCancel, Record, RunStatus
from worldline.kernel.run_operations import OUTLIVE, OpKind
from worldline.kernel.runs import LiveRun
from worldline.model import ids
from worldline.model.inbox import ReceiptStatus
from worldline.model.journal import Kind
from worldline.model.work import WorkKind

RETRY: Final = "retry_run"
RESET: Final = "reset_run"
TERMINATE: Final = "terminate_run"
ANSWER: Final = "answer_run"
ANSWER_EFFECT: Final = "answer_effect"

START: Final = 0  # `ResetRun.to`: everything is dropped

_AGAIN: Final = (OpKind.EFFECT, OpKind.SEND, OpKind.ASK, OpKind.AFTER, OpKind.START, OpKind.CHILD, OpKind.ACT)
_NOTHING: Final = (OpKind.TIMER, OpKind.SEND)  # operations whose outcome has no value


class RetryRun(msgspec.Struct, frozen=True, array_like=True):
    run: str


class ResetRun(msgspec.Struct, frozen=True, array_like=True):
    """`to`: the first operation to drop, counted from 1; 0: all. `again`: how often the run was reset or continued as
    new before, if the caller knows; a run for which that is not so is left alone: this was done already.
    """

    run: str
    to: int = START
    again: int = -1


def reset_run(run: str, to: object, *, again: int = -1) -> ResetRun:
    """Return the command for what a person says: "start", or the number of an operation, counted from 1."""
    if to == "start":
        return ResetRun(run, START, again)
    if isinstance(to, bool) or not isinstance(to, int) or to < 1:
        raise errors.BadInput(f'a run is reset to "start" or to an operation, counted from 1; not to {to!r}')
    return ResetRun(run, to, again)


class TerminateRun(msgspec.Struct, frozen=True, array_like=True):
    run: str
    reason: str


class AnswerRun(msgspec.Struct, frozen=True, array_like=True):
    """`op`: counted from 1. `data`: a value as canonical bytes, or with `error` nothing."""

    run: str
    op: int
    data: bytes
    error: str | None = None


class AnswerEffect(msgspec.Struct, frozen=True, array_like=True):
    """`run`: the run that called it, if the caller knows. It tells an effect that has an answer from one that never
    was. `running`: also one that is not parked, which may be performed now.
    """

    intent: bytes
    data: bytes
    error: str | None = None
    run: str = ""
    running: bool = False


class Twice(msgspec.Struct, frozen=True):
    """Names an operation that a reset drops: what it does may happen twice."""

    op: int  # counted from 1
    what: str
    done: bool  # it has an answer: it certainly happened, or failed


def twice(record: Record, to: int) -> list[Twice]:
    """What may happen twice if the run is reset to this operation."""
    first = _index(record, to)
    return [
        Twice(first + index + 1, divergence_report.describe(op), op.outcome is not None)
        for index, op in enumerate(record.ops[first:])
        if op.kind in _AGAIN
    ]


# --- The commands ----------------------------------------------------------------------------------------------------


def retry(machine: Machine, data: bytes) -> LiveRun:
    """Let a blocked run be rebuilt under the code that there is now. One that runs is left alone."""
    wanted = structs.decode(RetryRun, data)
    run = find(machine, wanted.run)
    if run.record.status in ENDED:
        raise errors.Closed(f"run {wanted.run!r} has ended; to run it again from its start: reset it")
    if run.record.status is RunStatus.BLOCKED:
        run.unblock()
        machine.now.ready.append(run.record.id)
    return run


def reset(machine: Machine, data: bytes) -> LiveRun:
    wanted = structs.decode(ResetRun, data)
    run = find(machine, wanted.run)
    record = run.record
    if wanted.again not in (-1, record.again):  # this very reset was done already
        return run
    first = _index(record, wanted.to)
    dropped = record.ops[first:]
    # Before the record drops them: what is open is found by its operations.
    for op in dropped:
        if op.outcome is None and op.kind not in OUTLIVE:
            machine.work.give_up_of(op)
    _let_go_children(machine, run, first)
    machine.work.drop_held(record, first)
    if record.status in ENDED:
        machine.revive(run)
    run.reset(first, returned=_taken(dropped), interrupts=_pending(record, first))
    # Nothing is left of the record, so the journal says that it starts again.
    if not first:
        machine.draft(
            Kind.RUN_STARTED, user_values.pack([record.id, record.workflow, record.args]), correlation=record.id
        )
    machine.now.ready.append(record.id)
    return run


def terminate(machine: Machine, data: bytes) -> LiveRun:
    wanted = structs.decode(TerminateRun, data)
    run = find(machine, wanted.run)
    if run.record.status not in ENDED:
        _terminate(machine, run, runs.failure("terminated", wanted.reason or "terminated"))
    return run


def answer(machine: Machine, data: bytes) -> LiveRun:
    wanted = structs.decode(AnswerRun, data)
    run = find(machine, wanted.run)
    record = run.record
    if record.status in ENDED:
        raise errors.Closed(f"run {wanted.run!r} has ended: none of its operations is open")
    if not 1 <= wanted.op <= len(record.ops):
        raise errors.NotFound(f"run {wanted.run!r} has no operation {wanted.op}; it has {len(record.ops)}")
    number = wanted.op - 1
    op = record.ops[number]
    outcome = _outcome(machine, op, wanted.data, wanted.error)
    if op.outcome is not None:
        if op.outcome.is_same(outcome):
            return run  # this very answer was given before
        known = f"operation {wanted.op} of run {wanted.run!r} ({divergence_report.describe(op)}) has an answer"
        # Only an answer that has blocked the run is replaced: any other has been given to the code already.
        if record.status is not RunStatus.BLOCKED or op.outcome.status is not ReceiptStatus.OK or _fits(machine, op):
            raise errors.Exists(known)
        if wanted.error is not None:
            raise errors.Exists(f"{known}, which does not fit: give another value, or reset the run to it")
        run.answer(number, outcome)
        run.unblock()
        machine.now.ready.append(record.id)
        return run
    machine.work.give_up_of(op)
    _let_go_children(machine, run, number, number + 1)
    run_requests.arrive(machine, record.id, number, outcome)
    return run


def answer_effect(machine: Machine, data: bytes) -> None:
    wanted = structs.decode(AnswerEffect, data)
    pending = machine.work.find_open(ids.IntentId(wanted.intent))
    if pending is None or pending.kind is WorkKind.TIMER:
        _check_answered(machine, wanted)
        return
    if pending.parked is None and not wanted.running:
        raise errors.Closed(
            f"effect {pending.name} {wanted.intent.hex()[:12]} is not parked and may be running: park it first, with "
            f"`worldline effect park {wanted.intent.hex()[:12]}`, or answer it all the same: --running, running=True"
        )
    outcome = _effect_outcome(machine, pending, wanted)
    machine.work.give_up(pending)
    if pending.event:
        machine.domains.answer(pending.event, outcome)
        return
    run_requests.arrive(machine, pending.run, pending.op, outcome)


def _check_answered(machine: Machine, wanted: AnswerEffect) -> None:
    """Raise why an effect that is not open cannot be answered; nothing if it has this very answer."""
    run = machine.runs.get(wanted.run)
    op = None if run is None else _asked_as(machine, run, wanted.intent)
    if op is None or op.outcome is None:
        raise errors.NotFound(f"no effect {wanted.intent.hex()} is open")
    if op.outcome.status is ReceiptStatus.CANCELLED:
        raise errors.Closed(f"effect {op.name} {wanted.intent.hex()[:12]} was cancelled: nothing waits for its answer")
    answered = runs.failed("answered", wanted.error) if wanted.error is not None else None
    if not op.outcome.is_same(answered or Outcome(ReceiptStatus.OK, wanted.data)):
        raise errors.Exists(f"effect {op.name} {wanted.intent.hex()[:12]} of run {wanted.run!r} has an answer")


def _asked_as(machine: Machine, run: LiveRun, intent: bytes) -> Op | None:
    """Return the operation that left the world under this name."""
    address = machine.now.context.address
    for op in run.record.ops:
        if op.asked is not None and machine.work.wanted_again(op.asked, address).intent == intent:
            return op
    return None


def find(machine: Machine, run_id: str) -> LiveRun:
    run = machine.runs.get(run_id)
    if run is None:
        raise errors.NotFound(f"no run {run_id!r}")
    return run


# --- Their parts -----------------------------------------------------------------------------------------------------


def _index(record: Record, to: int) -> int:
    """The first operation to drop, counted from 0. One behind the last may be named: then none is dropped, and the
    code continues live where its record ends.
    """
    if record.status in ENDED and to > 1:
        raise errors.Closed(f"run {record.id!r} has ended, and keeps no operations: it can be reset to its start alone")
    if not START <= to <= len(record.ops) + 1:
        raise errors.NotFound(
            f"run {record.id!r} has no operation {to}; it has {len(record.ops)}: name one of them, or its start"
        )
    return max(0, to - 1)


def _let_go_children(machine: Machine, run: LiveRun, first: int, end: int = runs.OPS_END) -> None:
    """No operation of these waits for a run any more. Those that the code waited for are cancelled."""
    record = run.record
    for child in machine.live_runs():
        if child.record.waited_for_by(record.id, first, end):
            # A run that was only attached to keeps running, and loses a follower.
            if _waits_for(record, child) and first <= child.record.parent_op < end:
                run_requests.interrupt(
                    machine, child, 0, "the run that waited for it does not any more", CancelKind.PARENT
                )
            machine.children.detach(child, record.id, first, end)


def _waits_for(record: Record, child: LiveRun) -> bool:
    """Whether the code of a run waits for another that it started. One that has ended keeps no operations, and the runs
    that outlive it still name it.
    """
    number = child.record.parent_op
    mine = child.record.parent == record.id and number < len(record.ops)
    return mine and record.ops[number].kind is OpKind.CHILD


def _taken(dropped: list[Op]) -> list[Buffered]:
    """Return the events that these operations had taken, in their order."""
    return [
        Buffered(op.name, op.outcome.data)
        for op in dropped
        if op.kind is OpKind.WAIT and op.outcome is not None and op.outcome.status is ReceiptStatus.OK
    ]


def _pending(record: Record, first: int) -> list[PendingCancel]:
    """The cancellations that wait to be delivered after a reset: those of the whole run that wait now, and the timeouts
    of scopes that the kept feedings have entered and not delivered.
    """
    fed = runs.feedings_kept(record, first)
    waiting = [each for each in record.interrupts if each.scope == 0]
    delivered = [each.scope for each in record.log[:fed]]
    for op in record.ops[:first]:
        scope = runs.timed_scope(op)
        if scope and op.outcome is not None and op.outcome.status is ReceiptStatus.OK and scope not in delivered:
            waiting.append(runs.timed_out(scope))
    return waiting


def _terminate(machine: Machine, run: LiveRun, why: bytes) -> None:
    """End a run and the runs that it waits for, and those that these wait for: each before the one that waits for it.
    All of it is one step, so how many they may be is bounded by what a step may write.
    """
    ending = _waited_for(machine, run)
    # Before anything is ended: all of it has to fit into one step.
    size = sum(ENTRY_BYTES + 2 * len(each.record.id) + len(why) for each in ending)
    if size > limits.STEP_BYTES_MAX:
        waits_for = grammar.count(len(ending) - 1, "run")
        raise errors.BadInput(
            f"run {run.record.id!r} waits for {waits_for}, directly or not: too many to end in one step; "
            "cancel it, which takes as many steps as it needs, or terminate some of these first"
        )
    for each in ending:
        run_driver.terminate(machine, each, why)


def _waited_for(machine: Machine, run: LiveRun) -> list[LiveRun]:
    """A run and its children of all generations, in the order in which they are ended. A chain of them may be as long
    as users make it: no frame of Python's stack for each.
    """
    children: dict[str, list[LiveRun]] = {}
    for each in machine.live_runs():
        parent = machine.live.get(each.record.parent)
        if parent is not None and _waits_for(parent.record, each):
            children.setdefault(parent.record.id, []).append(each)
    found: list[LiveRun] = []
    left = [run]
    while left:  # each is found before its children, the last child first: backwards, that is the order
        found.append(left.pop())
        left += children.get(found[-1].record.id, [])
    found.reverse()
    return found


def _outcome(machine: Machine, op: Op, data: bytes, error: str | None) -> Outcome:
    """What a person answers, checked against the types where the code is there."""
    if error is not None:
        return runs.failed("answered", error)
    if op.kind in (OpKind.VALUE, OpKind.PATCH):
        raise errors.Exists(f"{divergence_report.describe(op)} was answered when it was asked for")
    if op.kind is OpKind.AFTER:
        raise errors.BadInput(f"{divergence_report.describe(op)}: no code waits for it")
    if op.kind is OpKind.ACT:
        raise errors.BadInput(f"{divergence_report.describe(op)}: abandon the intent, or answer with an error")
    _check(machine, op.kind, op.name, data)
    return Outcome(ReceiptStatus.OK, data)


def _fits(machine: Machine, op: Op) -> bool:
    """Return whether the answer of an operation has the type that the code has for it now, as far as that is known."""
    assert op.outcome is not None
    try:
        _check(machine, op.kind, op.name, op.outcome.data)
    except errors.BadInput:
        return False
    return True


def _effect_outcome(machine: Machine, pending: Pending, wanted: AnswerEffect) -> Outcome:
    if wanted.error is not None:
        return runs.failed("answered", wanted.error)
    if pending.kind is WorkKind.EFFECT:
        _check(machine, OpKind.EFFECT, pending.name, wanted.data)
    return Outcome(ReceiptStatus.OK, wanted.data)


def _check(machine: Machine, kind: OpKind, name: str, data: bytes) -> None:
    """`BadInput` if a value is none, or does not have the type that the operation answers."""
    program = machine.program
    target: Any = None
    if kind is OpKind.EFFECT:
        target = program.find_effect(name)
    elif kind in (OpKind.CHILD, OpKind.START):
        target = program.workflows.get(name)
    try:
        # Also where no type is known, an answer must be canonical bytes.
        canonical.decode(data)
        if kind in _NOTHING and data != user_values.NONE:
            raise errors.BadInput(f"{kind.name.lower()} {name!r} has no value: answer it with null")
        if target is not None:
            target.signature.result(data)
        elif kind is OpKind.WAIT:
            user_values.load(program.routes.types.get(name, Any), data)
    except errors.DecodeError as error:
        raise errors.BadInput(f"the answer does not fit {name}: {error}") from error
