"""Coroutines of runs: feeding them by hand, and rebuilding them from their records.

A coroutine is fed with `send` and `throw`; what it yields must be one of the kernel's own `Await` records. Each feeding
is logged in the run before it happens, so the same feedings rebuild the same coroutine.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from worldline.base import errors, failures
from worldline.codec import structs
from worldline.kernel import context, halts, user_errors
from worldline.kernel.authoring import message_calls
from worldline.kernel.execution import divergence_report, stack, step_desk, workflow_calls
from worldline.kernel.machine import Blocked, Machine
from worldline.kernel.rows.row_records import JournaledFailure, Op, Resume
from worldline.kernel.run_operations import All, Await, First, Joined, OpKind, ScopeClosing
from worldline.kernel.runs import LiveRun
from worldline.model.inbox import ReceiptStatus
from worldline.model.journal import Kind

FOREIGN_AWAITS_MAX = 100
_AWAITS = (All, First, Joined, ScopeClosing)
_FED = (All, First)
_OK = ReceiptStatus.OK


def feed(coroutine: Coroutine[Any, Any, Any], run: LiveRun, resume: Resume | None) -> Await:
    """Run a coroutine to its next await. Whatever its code raises is raised here, `StopIteration` at its end.
    `Diverged` for code that strays from the record, or gets an answer that does not fit; and for a run that was reset
    and does not come to where it turns live.
    """
    turning = run.turning
    try:
        waiting = _feed(coroutine, run, resume)
    except BaseException as error:
        # What the process raises says nothing of the code: it is passed on as it is.
        if (turning or run.strayed) and not user_errors.let_pass(error):
            _check_fed(run, error, turning=turning)
        raise
    if turning or run.strayed:
        _check_fed(run, None, turning=turning)
    return waiting


def _check_fed(run: LiveRun, error: BaseException | None, *, turning: bool) -> None:
    if run.strayed:
        raise failures.Diverged(run.strayed) from error
    if turning and run.rebuilding:
        # Fewer than were kept: the code has ended, or waits, before the place where it should turn live.
        if run.issued != len(run.record.ops):
            raise failures.Diverged(_stops(run, error)) from error
        run.turned()


def _feed(coroutine: Coroutine[Any, Any, Any], run: LiveRun, resume: Resume | None) -> Await:
    yielded = _send(coroutine, run, resume)
    # Raised in the code, at its own await. Code that catches it and awaits the same again is stopped in the end.
    for _ in range(FOREIGN_AWAITS_MAX):
        if type(yielded) in _AWAITS and _is_possible(run, yielded):
            waiting: Await = yielded
            return waiting
        what = user_errors.name_of(type(yielded))
        yielded = stack.call(coroutine.throw, failures.NotDurable(f"awaited {what}: {user_errors.HINT}"))
    what = user_errors.name_of(type(yielded))
    raise failures.NotDurable(f"awaited {what} again and again: {user_errors.HINT}")


def _is_possible(run: LiveRun, waiting: Any) -> bool:
    """Whether a record names operations that the run has issued. One that the kernel's own functions made always does;
    user code can make others.
    """
    ops = waiting.ops
    issued = run.issued
    if type(waiting) is ScopeClosing and (type(waiting.timer) is not int or not -1 <= waiting.timer < issued):
        ops = ()
    if type(ops) is tuple and ops and (type(waiting) is not First or len(ops) == 2):
        for number in ops:
            if type(number) is not int or not 0 <= number < issued:
                break
        else:
            return True
    running: Any = context.current.get()
    return type(running) is context.Nowhere  # it was stopped, and what it awaits never happens


def _send(coroutine: Coroutine[Any, Any, Any], run: LiveRun, resume: Resume | None) -> Any:
    if resume is None:
        return stack.call(coroutine.send, None)
    ops = run.record.ops
    if resume.scope >= 0:
        if resume.failed >= 0:
            run.fail_scope(resume.scope, resume.failed)
        cancelled = failures.Cancelled(resume.reason, scope=resume.scope, kind=resume.kind)
        return stack.call(coroutine.throw, cancelled)
    if resume.failed >= 0:
        error = _error_of(ops[resume.failed])
        # Beside the journal: a rebuilt run has none, so nothing may be decided by it.
        trace = run.traces.take(resume.failed, ops[resume.failed].outcome)
        if trace:
            what = "where=" if ops[resume.failed].kind is OpKind.WAIT else "the effect"
            error.add_note(f"traceback of {what}:\n{trace}")
        return stack.call(coroutine.throw, error)
    waiting = run.waiting
    if type(waiting) is Joined or type(waiting) is ScopeClosing:
        return stack.call(coroutine.send, not resume.waited)
    assert isinstance(waiting, _FED)
    fed: list[bytes | None] = []
    for number in waiting.ops:
        outcome = ops[number].outcome
        # An operation given up later has an outcome too by the time a run is rebuilt; the run was never fed that.
        fed.append(None if outcome is None or outcome.status is not _OK else outcome.data)
    return stack.call(coroutine.send, tuple(fed))


def _error_of(op: Op) -> BaseException:
    """Return the exception that an operation's failure is raised as."""
    assert op.outcome is not None
    try:
        why = structs.decode(JournaledFailure, op.outcome.data)
    except errors.DecodeError:
        why = JournaledFailure("error", "no reason was given")
    if op.kind is OpKind.WAIT:
        return failures.Failed(f"wl.wait({op.name}): {why.message}", code=why.code, data=why.data)
    if op.kind in (OpKind.CHILD, OpKind.START):
        kind = failures.RunCancelled if op.outcome.status is ReceiptStatus.CANCELLED else failures.RunFailed
        if why.code == failures.TooManyRuns.code:
            kind = failures.TooManyRuns
        return kind(why.message, code=why.code, data=why.data)
    if why.code == "refused":
        return failures.Refused(why.message, data=why.data)
    kind_of_failure = failures.EffectTimeout if op.outcome.status is ReceiptStatus.TIMEOUT else failures.EffectFailed
    if op.kind in (OpKind.SEND, OpKind.ASK) and why.code in message_calls.NOT_TAKEN:
        kind_of_failure = failures.Undeliverable
    elif op.kind is OpKind.EFFECT and why.code == failures.PolicyDenied.code:
        kind_of_failure = failures.PolicyDenied
    return kind_of_failure(f"{op.name}: {why.message}", code=why.code, attempts=why.attempts, data=why.data)


# --- Rebuilding --------------------------------------------------------------------------------------------------


def rebuild(machine: Machine, run: LiveRun) -> None:
    """Make the coroutine again and feed it everything it was fed before. `Diverged` if the code does something else."""
    with step_desk.at(machine):
        _rebuild(machine, run)


def _rebuild(machine: Machine, run: LiveRun) -> None:
    check_given(machine, run)
    record = run.record
    flow = machine.program.workflows.get(record.workflow)
    if flow is None:
        known = list(machine.program.workflows)
        raise failures.Diverged(divergence_report.no_workflow(record.id, record.workflow, machine.program.name, known))
    # Nothing of an earlier rebuilding may mix with this one.
    run.cool()
    begun = bool(run.record.ops)  # a run that has begun and still lives waits for some operation
    try:
        args, kwargs = flow.signature.unpack(run.record.args)
        run.warm(flow.function(*args, **kwargs), rebuilding=begun)
    except BaseException as error:  # also what a decorator around the function raises
        if user_errors.let_pass(error):
            raise
        why = user_errors.text_of(error)
        raise failures.Diverged(
            divergence_report.unfit_arguments(record.id, record.workflow, record.args, why)
        ) from error
    if not begun:
        return
    try:
        # If a reset has kept no feeding, the beginning itself is the one that turns live, and the driver makes it.
        if record.log or not record.turning:
            _feed_again(machine, run, None)
        for resume in record.log[:-1] if record.turning else record.log:
            _feed_again(machine, run, resume)
        if record.turning:  # the driver makes the last feeding, which turns live
            machine.rebuilt(run)
            return
        _check_all_issued(run)
    except failures.Diverged:
        # A coroutine that was fed in part stands for no state of the record.
        run.cool()
        raise
    run.rebuilt()
    machine.rebuilt(run)


def _feed_again(machine: Machine, run: LiveRun, resume: Resume | None) -> None:
    run.at(resume)
    assert run.coroutine is not None
    before = context.current.set(workflow_calls.WorkflowCalls(machine, run, _raised_before))
    try:
        run.wait_for(feed(run.coroutine, run, resume))
    except BaseException as error:
        if user_errors.let_pass(error):
            raise
        raise failures.Diverged(run.strayed or _stops(run, error)) from error
    finally:
        context.current.reset(before)


def check_given(machine: Machine, run: LiveRun) -> None:
    """`Diverged` if the step is replayed and had blocked the run: whether a run is rebuilt depends on what was in
    memory.
    """
    given = None if machine.where is None else machine.now.given_blocks.get(run.record.id)
    if given is not None:
        raise failures.Diverged(given)


def _check_all_issued(run: LiveRun) -> None:
    if run.issued != len(run.record.ops):
        raise failures.Diverged(_stops(run, None))


def _stops(run: LiveRun, error: BaseException | None) -> str:
    """Report code that asks for nothing more where the record has more."""
    record = run.record
    how, at = "waits for something else", ""
    if type(error) is StopIteration:
        how = "returns"
    elif error is not None:
        how, at = f"raises {user_errors.message_in_step(error)}", divergence_report.raising_line(error)
    return divergence_report.stops(record.id, record.workflow, record.ops, run.issued, how, at=at)


def _raised_before(machine: Machine, schema: str, data: bytes, correlation_id: str) -> None:
    """What a rebuilt run emits was raised when the code ran for the first time."""


def block(machine: Machine, run: LiveRun, report: str) -> None:
    """Keep a run as it is whose code does not fit its record, until the program has code that fits."""
    unfit = run.block(report)
    record = run.record
    machine.draft(Kind.RUN_BLOCKED, structs.encode(Blocked(record.id, record.blocked, unfit)), correlation=record.id)
    halts.halt(machine, record.blocked, record.id)
