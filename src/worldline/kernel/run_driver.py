"""Driving runs: which continue in a step, what they are fed with, and how they end.

Runs that can continue are processed in the order in which their operations got outcomes.
"""

from __future__ import annotations

import msgspec

from worldline.base import errors, failures
from worldline.base.failures import CancelKind
from worldline.codec import structs
from worldline.kernel import context, event_dispatch, failure_data, run_requests, runs, user_errors, user_values
from worldline.kernel.execution import coroutines, tracebacks, waits
from worldline.kernel.execution.workflow_calls import WorkflowCalls
from worldline.kernel.machine import Machine, RunFinished
from worldline.kernel.rows.row_records import PendingCancel, Resume, RunStatus
from worldline.kernel.run_operations import OUTLIVE, All, ContinueAsNew, First, Joined, OpKind, ScopeClosing
from worldline.kernel.runs import LiveRun
from worldline.model.inbox import ReceiptStatus
from worldline.model.journal import Kind
from worldline.model.traces import TraceSource

_KEPT = (*OUTLIVE, OpKind.CHILD)  # not given up when the code stops waiting: the code itself ends a child, and waits
_WAITS = (All, First, Joined)
_AWAITS = (*_WAITS, ScopeClosing)
_RUNNING, _OK = RunStatus.RUNNING, ReceiptStatus.OK
_FAILURE, _PARENT = CancelKind.FAILURE, CancelKind.PARENT


def drain(machine: Machine) -> None:
    """Let every run continue that can, until all wait; or until the step is full, then the others continue in the
    next. Runs that wait briefly for what they have cancelled continue when no other can.
    """
    now = machine.now
    while now.ready or now.patient:
        if now.full:
            machine.continue_later()
            return
        last = not now.ready
        run = machine.runs.get(now.patient.pop(0) if last else now.ready.popleft())
        # It may have ended, or been blocked, since it became ready.
        if run is None or run.record.status is not _RUNNING:
            continue
        now.take_turn()
        try:
            _advance(machine, run, last=last)
        except failures.Diverged as error:
            coroutines.block(machine, run, error.report)


def _advance(machine: Machine, run: LiveRun, *, last: bool) -> None:
    """Let a run continue until it waits. `last`: nothing else can happen in this step now."""
    now = machine.now
    # A replay is told which runs were blocked: that depends on what was in memory then.
    if now.given_blocks:
        coroutines.check_given(machine, run)
    if run.coroutine is None:
        coroutines.rebuild(machine, run)
        if not run.record.turning:  # one that was reset looks when it has turned live
            waits.check_all(machine, run)
    if run.record.turning:
        _turn_live(machine, run)
    elif run.waiting is None:  # a new run: everything up to its first await
        run.begin(now.context.time_us, machine.origin.salts)
        _feed(machine, run, None)
    while run.live and run.waiting is not None:
        resume = _next(machine, run, last=last)
        if resume is None:
            return
        # Asked before a feeding is recorded: the run continues in the next step.
        if now.full:
            now.ready.append(run.record.id)
            return
        last = False
        now.take_turn()
        _apply(machine, run, resume)
        # Only forks have salts, so nearly all feedings are written without.
        if machine.origin.salts:
            resume = msgspec.structs.replace(resume, salts=machine.origin.salts)
        # Recorded before it happens, so that the same feedings rebuild the same coroutine.
        run.resumed(resume)
        _feed(machine, run, resume)


def _turn_live(machine: Machine, run: LiveRun) -> None:
    """A run was reset: make the last feeding that it has kept again. It turns live where its operations end."""
    log = run.record.log
    run.at(log[-1] if log else None, turning=True)
    _feed(machine, run, log[-1] if log else None)
    if run.live:
        waits.check_all(machine, run)


def _next(machine: Machine, run: LiveRun, *, last: bool) -> Resume | None:
    """What the run is fed with now, or None while it has to wait."""
    time_us = machine.now.context.time_us
    waiting = run.waiting
    if type(waiting) is ScopeClosing:
        return _closed(machine, run, waiting, last=last)
    # Before outcomes: a run that is cancelled is not fed with one more answer first.
    for interrupt in run.record.interrupts if run.record.interrupts.items else ():
        if run.inside(interrupt.scope) and not run.shielded(interrupt.scope):
            return Resume(time_us, scope=interrupt.scope, reason=interrupt.reason, kind=interrupt.kind)
    ops = run.record.ops
    if run.scopes and not run.checked:
        found = run.find_failure()
        if found is not None:
            scope, number = found
            reason = runs.storable(f"{ops[number].name} failed")
            return Resume(time_us, failed=number, scope=scope, reason=reason, kind=_FAILURE)
    assert isinstance(waiting, _WAITS)
    first = type(waiting) is First
    if not first and run.is_pending(waiting.ops):
        return None
    if type(waiting) is Joined:
        return Resume(time_us) if all(ops[number].outcome is not None for number in waiting.ops) else None
    done = 0
    for number in waiting.ops:
        outcome = ops[number].outcome
        if outcome is not None:
            if outcome.status is not _OK:
                return Resume(time_us, failed=number)
            done += 1
    return Resume(time_us) if done >= (1 if first else len(waiting.ops)) else None


def _closed(machine: Machine, run: LiveRun, waiting: ScopeClosing, *, last: bool) -> Resume | None:
    """What a run that waits for what it has cancelled is fed with now. No cancellation is delivered meanwhile."""
    now = machine.now
    ops = run.record.ops
    if all(ops[number].outcome is not None for number in waiting.ops):
        return Resume(now.context.time_us)
    if waiting.timer >= 0 and ops[waiting.timer].outcome is not None:
        return Resume(now.context.time_us, waited=True)
    if waiting.brief:
        if last:
            return Resume(now.context.time_us, waited=True)
        now.patient.append(run.record.id)
    return None


def _apply(machine: Machine, run: LiveRun, resume: Resume) -> None:
    """What a feeding changes besides: a delivered interrupt is removed, and operations that the run does not wait for
    any more are given up. What belongs to a scope is up to its code, and so are runs.
    """
    waiting = run.waiting
    assert isinstance(waiting, _AWAITS)
    if resume.scope >= 0 and resume.failed < 0:
        run.interrupted(PendingCancel(resume.scope, resume.reason, resume.kind))
    if (resume.scope >= 0 or resume.failed >= 0) and not isinstance(waiting, Joined):
        for number in waiting.ops:
            if run.record.ops[number].kind not in _KEPT:
                run_requests.cancel_op(machine, run, number, resume.reason or "another operation failed")


def _feed(machine: Machine, run: LiveRun, resume: Resume | None) -> None:
    """Run the coroutine to its next await, or to its end."""
    coroutine = run.coroutine
    assert coroutine is not None
    calls = WorkflowCalls(machine, run, event_dispatch.raise_event)
    before = context.current.set(calls)
    try:
        run.wait_for(coroutines.feed(coroutine, run, resume))
        calls.check_lost()
    except StopIteration as stop:
        _finish(machine, run, stop.value, calls)
    except ContinueAsNew as again:
        if run.continuing is None:  # raised by the code itself, with what it likes
            _fail(machine, run, again)
        else:
            _continue(machine, run, *run.continuing)
    except failures.Cancelled as cancelled:
        _end(machine, run, RunStatus.CANCELLED, _cancellation(cancelled))
    except BaseException as error:  # whatever the user's code raises is the run's result
        # It has departed from its record before it turned live, or got an answer that does not fit.
        if user_errors.let_pass(error) or run.rebuilding or run.strayed:
            raise
        _fail(machine, run, error)
    finally:
        context.current.reset(before)


# --- How runs end ------------------------------------------------------------------------------------------------


def _finish(machine: Machine, run: LiveRun, result: object, calls: WorkflowCalls) -> None:
    try:
        calls.check_calls()
        data = user_values.dump(result)
    except failures.NotDurable as error:
        _end(machine, run, RunStatus.FAILED, runs.failure(error.code, str(error)))
    except errors.EncodeError as error:
        why = f"the result of {run.record.workflow}(): {error}"
        _end(machine, run, RunStatus.FAILED, runs.failure(error.code, why))
    else:
        _end(machine, run, RunStatus.FINISHED, data)


def terminate(machine: Machine, run: LiveRun, data: bytes) -> None:
    """End a run without its code: it is cancelled at once, with this failure."""
    _end(machine, run, RunStatus.CANCELLED, data)


def _fail(machine: Machine, run: LiveRun, error: BaseException) -> None:
    """User code raised: that is the run's end."""
    # The reason comes through every run that waits for the one that was refused: said once, it can be read in the end.
    refused = type(error) is failures.TooManyRuns
    message = user_errors.text_of(error) if refused else user_errors.message_in_step(error)
    tracebacks.record(machine, TraceSource.RUN, run.record.id, error, message)
    why = runs.failure(user_errors.code_of(error), message, data=failure_data.data_of(error))
    _end(machine, run, RunStatus.FAILED, why)


def _end(machine: Machine, run: LiveRun, status: RunStatus, data: bytes) -> None:
    """Record a run's end, answer the operations that wait for it, and drop what it does not need any more."""
    # While the record still has the operations, by which open work is found.
    _cancel_ops(machine, run, "the run has ended")
    machine.work.release_held(run.record)
    run.end(status, data, time_us=machine.now.context.time_us)
    record = run.record
    machine.draft(Kind.RUN_FINISHED, structs.encode(RunFinished(record.id, status, data)), correlation=record.id)
    followers = run.clear()
    machine.end_run(run)
    # Last: the runs that waited for this one must find it ended.
    for follower in followers:
        run_requests.arrive(machine, follower.run, follower.op, runs.outcome_of(record))


def _continue(machine: Machine, run: LiveRun, workflow: str, args: bytes) -> None:
    """Start over under the same id, with nothing recorded yet."""
    record = run.record
    _cancel_ops(machine, run, "continued as new")
    # Its children continue without it: the operations that waited for them are gone.
    for child in machine.live_runs():
        machine.children.detach(child, record.id)
    machine.work.release_held(run.record)
    machine.start_over(run, workflow, args)
    machine.draft(Kind.RUN_STARTED, user_values.pack([record.id, record.workflow, record.args]), correlation=record.id)
    machine.now.ready.append(record.id)


def _cancel_ops(machine: Machine, run: LiveRun, reason: str) -> None:
    for number, op in enumerate(run.record.ops):
        if op.outcome is None and op.kind not in OUTLIVE:
            run_requests.cancel_op(machine, run, number, reason)


def _cancellation(cancelled: failures.Cancelled) -> bytes:
    """A cancellation that no code of the run has caught, as it is journaled."""
    kind = getattr(cancelled, "kind", None)
    # The exception may be an object that the user's code has made or changed.
    kind = kind if type(kind) is CancelKind else CancelKind.USER
    return runs.failure("cancelled", user_errors.text_of(cancelled), data={"kind": kind.name.lower()})
