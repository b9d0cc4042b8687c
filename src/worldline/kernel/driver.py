"""Driving runs: feeding coroutines by hand, rebuilding them from their records, cancelling them.

A coroutine is fed with `send` and `throw`; what it yields must be one of the kernel's own `Await` records. Each feeding
is logged in the run before it happens, so the same feedings rebuild the same coroutine. Runs that can go on are taken
in the order in which their operations arrived.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from worldline.base import errors, failures
from worldline.codec import digest, structs
from worldline.kernel import handling, here, runs, values
from worldline.kernel.runs import All, Await, First, Interrupt, OpKind, Record, Resume, Run, RunStatus
from worldline.model.inbox import ReceiptStatus
from worldline.model.journal import Kind

if TYPE_CHECKING:
    from worldline.kernel.machine import Machine

RESUMPTIONS_MAX = 10_000
_HINT = (
    "a workflow can await only what Worldline records: effects, workflows, wl.sleep, wl.wait, wl.gather and the like; "
    "put asyncio and other I/O into an @effect"
)
_LOOP_ERRORS = ("no running event loop", "no current event loop", "loop argument must")


def start(
    machine: Machine,
    *,
    run_id: str,
    workflow: str,
    args: bytes,
    seed: bytes,
    named: bool,
    parent: str = "",
    parent_op: int = -1,
) -> Run:
    """A new run. It makes its first moves later in this step."""
    record = Record(
        run_id, workflow, args, seed, named, machine.now.context.time_us,
        parent=parent, parent_op=parent_op, ops=[], log=[], buffer=[], interrupts=[],
    )  # fmt: skip
    run = machine.add_run(record)
    run.touch(b"start", run_id.encode(), workflow.encode(), args, seed)
    machine.mark_run(run)
    machine.draft(Kind.RUN_STARTED, values.dump([run_id, workflow, args]), correlation=run_id)
    machine.now.ready.append(run_id)
    return run


def start_child(machine: Machine, run: Run, number: int, params: bytes, *, run_id: str) -> None:
    """A run's CHILD or START operation: a run of its own, whose end is the operation's outcome."""
    op = run.record.ops[number]
    child = run_id or child_id(run, number)
    if child in machine.runs:
        reason = f"run id {child!r} is taken"
        machine.arrive(run.record.id, number, runs.failed("id_reused", reason))
        return
    seed = digest.hash_parts(b"child", run.record.seed, number.to_bytes(4, "big"))
    start(
        machine, run_id=child, workflow=op.name, args=params, seed=seed, named=bool(run_id),
        parent=run.record.id, parent_op=number,
    )  # fmt: skip


def child_id(run: Run, number: int) -> str:
    return f"{run.record.id}/{number}"


def drain(machine: Machine) -> None:
    """Let every run go on that can, until all wait."""
    ready = machine.now.ready
    turns = 0
    while ready:
        run = machine.runs.get(ready.popleft())
        if run is None or run.record.status is not RunStatus.RUNNING:
            continue
        turns += 1
        try:
            if turns > RESUMPTIONS_MAX:
                _overrun(machine, run)
            else:
                _advance(machine, run)
        except failures.Diverged as error:
            block(machine, run, error.report)


def _advance(machine: Machine, run: Run) -> None:
    if run.coroutine is None:
        rebuild(machine, run)
    if run.waiting is None:  # a new run: everything up to its first await
        run.time_us = machine.now.context.time_us
        _feed(machine, run, None)
    for _ in range(RESUMPTIONS_MAX):
        if not run.live or run.waiting is None:
            return
        resume = _next(machine, run)
        if resume is None:
            return
        _apply(machine, run, resume)
        run.record.log.append(resume)
        run.time_us = resume.time_us
        _feed(machine, run, resume)
    _overrun(machine, run)


def _overrun(machine: Machine, run: Run) -> None:
    message = f"went on more than {RESUMPTIONS_MAX} times in one step; let it sleep or wait for something"
    _end(machine, run, RunStatus.FAILED, runs.failure("limit_exceeded", message))


def _next(machine: Machine, run: Run) -> Resume | None:
    """What the run is to be fed with now, or None while it has to wait."""
    time_us = machine.now.context.time_us
    for interrupt in run.record.interrupts:
        if run.inside(interrupt.scope) and not run.shielded(interrupt.scope):
            return Resume(time_us, scope=interrupt.scope, reason=interrupt.reason)
    ops = run.record.ops
    waiting = run.waiting
    assert isinstance(waiting, All | First)
    outcomes = [ops[number].outcome for number in waiting.ops]
    if isinstance(waiting, First):
        return Resume(time_us) if any(outcome is not None for outcome in outcomes) else None
    for number, outcome in zip(waiting.ops, outcomes, strict=True):
        if outcome is not None and outcome.status is not ReceiptStatus.OK:
            return Resume(time_us, failed=number)
    return Resume(time_us) if all(outcome is not None for outcome in outcomes) else None


def _apply(machine: Machine, run: Run, resume: Resume) -> None:
    """What a feeding does besides: a delivered interrupt is gone, and what is no longer waited for is given up."""
    waiting = run.waiting
    assert isinstance(waiting, All | First)
    if resume.scope >= 0:
        delivered = Interrupt(resume.scope, resume.reason)
        run.record.interrupts.remove(delivered)
    if resume.scope >= 0 or resume.failed >= 0:
        for number in waiting.ops:
            machine.cancel_op(run, number, resume.reason or "another operation failed")


def _feed(machine: Machine, run: Run, resume: Resume | None) -> None:
    """Run the coroutine to its next await, or to its end."""
    coroutine = run.coroutine
    assert coroutine is not None
    hands = handling.Handling(machine, time_us=run.time_us, seed=run.record.seed, run=run)
    token = here.current.set(hands)
    try:
        run.waiting = _to_next_await(coroutine, run, resume)
    except failures.Diverged:
        raise
    except StopIteration as stop:
        _finish(machine, run, stop.value, hands)
    except ContinueAsNew as again:
        _continue(machine, run, again.call)
    except failures.Cancelled as cancelled:
        _end(machine, run, RunStatus.CANCELLED, runs.failure("cancelled", cancelled.reason))
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises is the run's result
        _end(machine, run, RunStatus.FAILED, runs.failure(code_of(error), message_of(error)))
    finally:
        here.current.reset(token)


def _to_next_await(coroutine: Coroutine[Any, Any, Any], run: Run, resume: Resume | None) -> Await:
    yielded = _send(coroutine, run, resume)
    while not isinstance(yielded, Await):
        yielded = coroutine.throw(failures.NotDurable(f"awaited {type(yielded).__name__}: {_HINT}"))
    return yielded


def _send(coroutine: Coroutine[Any, Any, Any], run: Run, resume: Resume | None) -> Any:
    if resume is None:
        return coroutine.send(None)
    ops = run.record.ops
    if resume.scope >= 0:
        cancelled = failures.Cancelled(resume.reason)
        cancelled.scope = resume.scope  # type: ignore[attr-defined]
        return coroutine.throw(cancelled)
    if resume.failed >= 0:
        return coroutine.throw(error_of(ops[resume.failed]))
    waiting = run.waiting
    assert isinstance(waiting, All | First)
    done = [ops[number].outcome for number in waiting.ops]
    # An operation given up later has an outcome too by the time a run is rebuilt; the run never went on with that.
    fed = (None if each is None or each.status is not ReceiptStatus.OK else each.data for each in done)
    return coroutine.send(tuple(fed))


def rebuild(machine: Machine, run: Run) -> None:
    """Make the coroutine anew and feed it everything it was fed before. `Diverged` if the code does something else."""
    flow = machine.program.workflows.get(run.record.workflow)
    if flow is None:
        raise failures.Diverged(
            f"run {run.record.id!r}: program {machine.program.name!r} has no workflow {run.record.workflow!r}"
        )
    try:
        args, kwargs = flow.signature.unpack(run.record.args)
    except (errors.DecodeError, TypeError) as error:
        raise failures.Diverged(f"run {run.record.id!r}: its arguments do not fit {flow.name}(): {error}") from error
    run.cool()
    run.coroutine = flow.function(*args, **kwargs)
    if not run.record.ops:
        return  # it has not begun: a run that has and still lives waits for some operation
    run.rebuilding = True
    try:
        _feed_rebuilding(machine, run, None, run.record.started_us)
        for resume in run.record.log:
            _feed_rebuilding(machine, run, resume, resume.time_us)
        handling.check_all_issued(run)
    except failures.Diverged:
        run.cool()
        raise
    run.rebuilding = False


def _feed_rebuilding(machine: Machine, run: Run, resume: Resume | None, time_us: int) -> None:
    run.time_us = time_us
    assert run.coroutine is not None
    hands = handling.Handling(machine, time_us=time_us, seed=run.record.seed, run=run)
    token = here.current.set(hands)
    try:
        run.waiting = _to_next_await(run.coroutine, run, resume)
    except failures.Diverged:
        raise
    except BaseException as error:
        ended = "returns" if isinstance(error, StopIteration) else f"raises {type(error).__name__}: {error}"
        raise failures.Diverged(
            f"run {run.record.id!r} ({run.record.workflow}): the code {ended} where the journal goes on"
        ) from error
    finally:
        here.current.reset(token)


def block(machine: Machine, run: Run, report: str) -> None:
    """The code does not fit the record: keep the run as it is until code that fits comes."""
    run.cool()
    run.record.status = RunStatus.BLOCKED
    run.record.blocked = report
    machine.mark_run(run)


def interrupt(machine: Machine, run: Run, scope: int, reason: str) -> None:
    """Cancel a scope of a run, or all of it (0), once no shield is in the way."""
    pending = [each.scope for each in run.record.interrupts]
    if run.live and scope not in pending:
        run.record.interrupts.append(Interrupt(scope, reason))
        run.touch(b"interrupt", scope.to_bytes(4, "big"), reason.encode())
        machine.mark_run(run)
        machine.now.ready.append(run.record.id)


def scope_timer(run: Run, number: int) -> None:
    """A scope's time is up: its timer's outcome becomes an interrupt of the scope."""
    op = run.record.ops[number]
    if op.kind is OpKind.TIMER and op.name.startswith("scope:"):
        scope = int(op.name.removeprefix("scope:"))
        if all(each.scope != scope for each in run.record.interrupts):
            run.record.interrupts.append(Interrupt(scope, "timeout"))


def deliver(machine: Machine, run: Run, schema: str, data: bytes) -> None:
    """Give an event to a run: to the wait it satisfies, or into the buffer until one does."""
    if run.coroutine is None and run.record.status is RunStatus.RUNNING:
        try:
            rebuild(machine, run)
        except failures.Diverged as error:
            block(machine, run, error.report)
    run.record.buffer.append(runs.Buffered(schema, data))
    run.touch(b"event", schema.encode(), data)
    machine.mark_run(run)
    for number in list(run.wheres):
        if run.record.ops[number].outcome is None:
            look_in_buffer(machine, run, number)


def look_in_buffer(machine: Machine, run: Run, number: int) -> None:
    """Answer a wait with the first buffered event that fits it."""
    if run.rebuilding:
        return
    kind, where = run.wheres[number]
    schema = values.schema_name(kind)
    for index, buffered in enumerate(run.record.buffer):
        if buffered.schema == schema and (where is None or where(values.load(kind, buffered.data))):
            del run.record.buffer[index]
            machine.arrive(run.record.id, number, runs.Outcome(ReceiptStatus.OK, buffered.data))
            return


def _finish(machine: Machine, run: Run, result: object, hands: handling.Handling) -> None:
    forgotten = next((call for call in hands.made if not call.awaited), None)
    if forgotten is not None:
        message = f"{forgotten!r} was made but never awaited; write `await {forgotten!r}`"
        _end(machine, run, RunStatus.FAILED, runs.failure("not_durable", message))
        return
    try:
        _end(machine, run, RunStatus.FINISHED, values.dump(result))
    except errors.EncodeError as error:
        _end(machine, run, RunStatus.FAILED, runs.failure("encode_error", f"the result: {error}"))


def _end(machine: Machine, run: Run, status: RunStatus, data: bytes) -> None:
    run.coroutine = None
    machine.end_run(run, status, data)


def _continue(machine: Machine, run: Run, call: Any) -> None:
    """Start over under the same id, with nothing recorded yet."""
    record = run.record
    for number, op in enumerate(record.ops):
        if op.outcome is None and op.kind not in runs.OUTLIVE:
            machine.cancel_op(run, number, "continued as new")
    for child in machine.live_runs():
        if child.record.parent == record.id:
            child.record.parent = ""  # nobody is left who could wait for it
    run.coroutine = None
    record.workflow, record.args = call.target.name, call.pack()
    record.seed = digest.hash_parts(b"again", record.seed)
    record.ops, record.log, record.interrupts = [], [], []
    record.started_us = machine.now.context.time_us
    run.cool()
    record.digest = b""
    run.touch(b"start", record.id.encode(), record.workflow.encode(), record.args, record.seed)
    machine.mark_run(run)
    machine.draft(Kind.RUN_STARTED, values.dump([record.id, record.workflow, record.args]), correlation=record.id)
    machine.now.ready.append(record.id)


class ContinueAsNew(BaseException):
    def __init__(self, call: Any) -> None:
        super().__init__()
        self.call = call


def error_of(op: runs.Op) -> BaseException:
    """The exception that an operation's failure is raised as."""
    assert op.outcome is not None
    why = structs.decode(runs.Failure, op.outcome.data)
    if op.kind in (OpKind.CHILD, OpKind.START):
        kind = failures.RunCancelled if op.outcome.status is ReceiptStatus.CANCELLED else failures.RunFailed
        return kind(why.message, code=why.code)
    if why.code == "refused":
        return failures.Refused(why.message)
    kind_of_failure = failures.EffectTimeout if op.outcome.status is ReceiptStatus.TIMEOUT else failures.EffectFailed
    return kind_of_failure(f"{op.name}: {why.message}", code=why.code, attempts=why.attempts)


def code_of(error: BaseException) -> str:
    return str(getattr(error, "code", "")) or type(error).__name__


def message_of(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, RuntimeError) and any(each in str(error) for each in _LOOP_ERRORS):
        return f"{text}: asyncio cannot be used inside a workflow; {_HINT}"
    return text
