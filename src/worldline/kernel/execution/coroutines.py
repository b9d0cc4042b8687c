"""Coroutines of runs: feeding them by hand, and rebuilding them from their records.

A coroutine is fed with `send` and `throw`; what it yields must be one of the kernel's own `Await` records. Each feeding
is logged in the run before it happens, so the same feedings rebuild the same coroutine.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from worldline.base import errors, failures
from worldline.codec import structs
from worldline.kernel import context, runs, user_errors
from worldline.kernel.execution import stack, workflow_calls
from worldline.kernel.operations import All, Await, First, OpKind
from worldline.kernel.runs import Resume, Run
from worldline.kernel.state import Machine
from worldline.model.inbox import ReceiptStatus

FOREIGN_AWAITS_MAX = 100


def feed(coroutine: Coroutine[Any, Any, Any], run: Run, resume: Resume | None) -> Await:
    """Run a coroutine to its next await. Whatever its code raises is raised here, `StopIteration` at its end."""
    yielded = _send(coroutine, run, resume)
    for _ in range(FOREIGN_AWAITS_MAX):
        if (type(yielded) is All or type(yielded) is First) and _is_possible(run, yielded):
            return yielded
        what = user_errors.name_of(type(yielded))
        yielded = stack.call(coroutine.throw, failures.NotDurable(f"awaited {what}: {user_errors.HINT}"))
    what = user_errors.name_of(type(yielded))
    raise failures.NotDurable(f"awaited {what} again and again: {user_errors.HINT}")


def _is_possible(run: Run, waiting: All | First) -> bool:
    """Whether a record names operations that the run has issued. One that the kernel's own functions made always does;
    user code can make others.
    """
    ops = waiting.ops
    issued = run.issued
    if type(ops) is tuple and ops and (type(waiting) is All or len(ops) == 2):
        for number in ops:
            if type(number) is not int or not 0 <= number < issued:
                break
        else:
            return True
    running: Any = context.current.get()
    return type(running) is context.Nowhere  # it was stopped, and what it awaits never happens


def _send(coroutine: Coroutine[Any, Any, Any], run: Run, resume: Resume | None) -> Any:
    if resume is None:
        return stack.call(coroutine.send, None)
    ops = run.record.ops
    if resume.scope >= 0:
        return stack.call(coroutine.throw, failures.Cancelled(resume.reason, scope=resume.scope))
    if resume.failed >= 0:
        return stack.call(coroutine.throw, _error_of(ops[resume.failed]))
    waiting = run.waiting
    assert isinstance(waiting, All | First)
    done = [ops[number].outcome for number in waiting.ops]
    # An operation given up later has an outcome too by the time a run is rebuilt; the run was never fed that.
    fed = (None if each is None or each.status is not ReceiptStatus.OK else each.data for each in done)
    return stack.call(coroutine.send, tuple(fed))


def _error_of(op: runs.Op) -> BaseException:
    """The exception that an operation's failure is raised as."""
    assert op.outcome is not None
    try:
        why = structs.decode(runs.Failure, op.outcome.data)
    except errors.DecodeError:
        why = runs.Failure("error", "no reason was given")
    if op.kind is OpKind.WAIT:
        return failures.Failed(f"wl.wait({op.name}): {why.message}", code=why.code, data=why.data)
    if op.kind in (OpKind.CHILD, OpKind.START):
        kind = failures.RunCancelled if op.outcome.status is ReceiptStatus.CANCELLED else failures.RunFailed
        return kind(why.message, code=why.code, data=why.data)
    if why.code == "refused":
        return failures.Refused(why.message, data=why.data)
    kind_of_failure = failures.EffectTimeout if op.outcome.status is ReceiptStatus.TIMEOUT else failures.EffectFailed
    return kind_of_failure(f"{op.name}: {why.message}", code=why.code, attempts=why.attempts, data=why.data)


# --- Rebuilding --------------------------------------------------------------------------------------------------


def rebuild(machine: Machine, run: Run) -> None:
    """Make the coroutine anew and feed it everything it was fed before. `Diverged` if the code does something else."""
    flow = machine.program.workflows.get(run.record.workflow)
    if flow is None:
        raise failures.Diverged(
            f"run {run.record.id!r}: program {machine.program.name!r} has no workflow {run.record.workflow!r}"
        )
    run.cool()
    begun = bool(run.record.ops)  # a run that has begun and still lives waits for some operation
    try:
        args, kwargs = flow.signature.unpack(run.record.args)
        run.warm(flow.function(*args, **kwargs), rebuilding=begun)
    except BaseException as error:  # also what a decorator around the function raises
        if user_errors.let_pass(error):
            raise
        why = user_errors.text_of(error)
        raise failures.Diverged(f"run {run.record.id!r}: its arguments do not fit {flow.name}(): {why}") from error
    if not begun:
        return
    try:
        _feed_again(machine, run, None, run.record.started_us)
        for resume in run.record.log:
            _feed_again(machine, run, resume, resume.time_us)
        workflow_calls.check_all_issued(run)
    except failures.Diverged:
        run.cool()
        raise
    run.rebuilt()


def _feed_again(machine: Machine, run: Run, resume: Resume | None, time_us: int) -> None:
    run.at(time_us)
    assert run.coroutine is not None
    token = context.current.set(workflow_calls.WorkflowCalls(machine, run, _raised_before))
    try:
        run.wait_for(feed(run.coroutine, run, resume))
    except BaseException as error:
        if user_errors.let_pass(error):
            raise
        ended = "returns" if type(error) is StopIteration else f"raises {user_errors.message_of(error)}"
        raise failures.Diverged(
            run.strayed or f"run {run.record.id!r} ({run.record.workflow}): the code {ended} where the journal goes on"
        ) from error
    finally:
        context.current.reset(token)
    if run.strayed:
        raise failures.Diverged(run.strayed)


def _raised_before(machine: Machine, schema: str, data: bytes) -> None:
    """What a rebuilt run emits was raised when the code ran for the first time."""


def block(machine: Machine, run: Run, report: str) -> None:
    """The code does not fit the record: keep the run as it is until the program has code that fits."""
    run.block(report)
    machine.mark_run(run)
