"""Driving runs: which continue in a step, what they are fed with, and how they end.

Runs that can continue are taken in the order in which their operations got outcomes.
"""

from __future__ import annotations

from worldline.base import errors, failures
from worldline.codec import structs
from worldline.kernel import context, events, failure, runs, user_errors, values, work
from worldline.kernel.execution import coroutines, waits
from worldline.kernel.execution.workflow_calls import WorkflowCalls
from worldline.kernel.operations import OUTLIVE, All, ContinueAsNew, First
from worldline.kernel.runs import Resume, Run, RunStatus
from worldline.kernel.state import Ended, Machine
from worldline.model.inbox import ReceiptStatus
from worldline.model.journal import Kind


def drain(machine: Machine) -> None:
    """Let every run continue that can, until all wait; or until the step is full, then the others continue in the
    next.
    """
    now = machine.now
    while now.ready:
        if now.full:
            machine.continue_later()
            return
        run = machine.runs.get(now.ready.popleft())
        if run is None or run.record.status is not RunStatus.RUNNING:
            continue
        now.take_turn()
        try:
            _advance(machine, run)
        except failures.Diverged as error:
            coroutines.block(machine, run, error.report)


def _advance(machine: Machine, run: Run) -> None:
    now = machine.now
    if run.coroutine is None:
        coroutines.rebuild(machine, run)
        waits.check_all(machine, run)
    if run.waiting is None:  # a new run: everything up to its first await
        run.begin(now.context.time_us)
        _feed(machine, run, None)
    while run.live and run.waiting is not None:
        resume = _next(machine, run)
        if resume is None:
            return
        if now.full:
            now.ready.append(run.record.id)
            return
        now.take_turn()
        _apply(machine, run, resume)
        run.resumed(resume)
        _feed(machine, run, resume)


def _next(machine: Machine, run: Run) -> Resume | None:
    """What the run is fed with now, or None while it has to wait."""
    time_us = machine.now.context.time_us
    for interrupt in run.record.interrupts:
        if run.inside(interrupt.scope) and not run.shielded(interrupt.scope):
            return Resume(time_us, scope=interrupt.scope, reason=interrupt.reason)
    ops = run.record.ops
    waiting = run.waiting
    assert isinstance(waiting, All | First)
    if isinstance(waiting, All) and run.is_pending(waiting.ops):
        return None
    done = 0
    for number in waiting.ops:
        outcome = ops[number].outcome
        if outcome is not None:
            if outcome.status is not ReceiptStatus.OK:
                return Resume(time_us, failed=number)
            done += 1
    enough = 1 if isinstance(waiting, First) else len(waiting.ops)
    return Resume(time_us) if done >= enough else None


def _apply(machine: Machine, run: Run, resume: Resume) -> None:
    """What a feeding changes besides: a delivered interrupt is removed, and operations that the run does not wait for
    any more are given up.
    """
    waiting = run.waiting
    assert isinstance(waiting, All | First)
    if resume.scope >= 0:
        run.interrupted(resume.scope, resume.reason)
    if resume.scope >= 0 or resume.failed >= 0:
        for number in waiting.ops:
            if run.record.ops[number].kind not in OUTLIVE:
                work.cancel_op(machine, run, number, resume.reason or "another operation failed")


def _feed(machine: Machine, run: Run, resume: Resume | None) -> None:
    """Run the coroutine to its next await, or to its end."""
    coroutine = run.coroutine
    assert coroutine is not None
    calls = WorkflowCalls(machine, run, events.raise_event)
    token = context.current.set(calls)
    try:
        run.wait_for(coroutines.feed(coroutine, run, resume))
        calls.check_lost()
    except StopIteration as stop:
        _finish(machine, run, stop.value, calls)
    except ContinueAsNew as again:
        if run.continuing is None:  # raised by the code itself, with what it likes
            _end(machine, run, RunStatus.FAILED, _failure_of(again))
        else:
            _continue(machine, run, *run.continuing)
    except failures.Cancelled as cancelled:
        _end(machine, run, RunStatus.CANCELLED, runs.failure("cancelled", user_errors.text_of(cancelled)))
    except BaseException as error:  # whatever the user's code raises is the run's result
        if user_errors.let_pass(error):
            raise
        _end(machine, run, RunStatus.FAILED, _failure_of(error))
    finally:
        context.current.reset(token)


# --- How runs end ------------------------------------------------------------------------------------------------


def _finish(machine: Machine, run: Run, result: object, calls: WorkflowCalls) -> None:
    try:
        calls.check_calls()
        data = values.dump(result)
    except failures.NotDurable as error:
        _end(machine, run, RunStatus.FAILED, runs.failure(error.code, str(error)))
    except errors.EncodeError as error:
        _end(machine, run, RunStatus.FAILED, runs.failure(error.code, f"the result: {error}"))
    else:
        _end(machine, run, RunStatus.FINISHED, data)


def _end(machine: Machine, run: Run, status: RunStatus, data: bytes) -> None:
    """Record a run's end, answer the operations that wait for it, and drop what it does not need any more."""
    _cancel_ops(machine, run, "the run has ended")
    machine.release_held(run)
    run.end(status, data)
    machine.mark_run(run)
    record = run.record
    machine.draft(Kind.RUN_FINISHED, structs.encode(Ended(record.id, status, data)), correlation=record.id)
    followers = run.clear()
    machine.end_run(run)
    for follower in followers:
        work.arrive(machine, follower.run, follower.op, runs.outcome_of(record))


def _continue(machine: Machine, run: Run, workflow: str, args: bytes) -> None:
    """Start over under the same id, with nothing recorded yet."""
    record = run.record
    _cancel_ops(machine, run, "continued as new")
    for child in machine.live_runs():
        child.detach(record.id)
    machine.release_held(run)
    machine.start_over(run, workflow, args)
    machine.mark_run(run)
    machine.draft(Kind.RUN_STARTED, values.pack([record.id, record.workflow, record.args]), correlation=record.id)
    machine.now.ready.append(record.id)


def _cancel_ops(machine: Machine, run: Run, reason: str) -> None:
    for number, op in enumerate(run.record.ops):
        if op.outcome is None and op.kind not in OUTLIVE:
            work.cancel_op(machine, run, number, reason)


def _failure_of(error: BaseException) -> bytes:
    """What user code raised, as it is journaled."""
    return runs.failure(user_errors.code_of(error), user_errors.message_of(error), data=failure.data_of(error))
