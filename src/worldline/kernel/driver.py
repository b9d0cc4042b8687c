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
from worldline.kernel import context, failure, handling, runs, stack, user_errors, values
from worldline.kernel.runs import All, Await, First, Held, Interrupt, OpKind, Record, Resume, Run, RunStatus
from worldline.model.inbox import ReceiptStatus
from worldline.model.journal import Kind

if TYPE_CHECKING:
    from worldline.kernel.machine import Machine

FOREIGN_AWAITS_MAX = 100
CHILD_ID_CHARACTERS_MAX = 160
FOLLOWERS_MAX = 4_096


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
        parent=parent, parent_op=parent_op, ops=[], log=[], buffer=[], interrupts=[], followers=[],
    )  # fmt: skip
    run = machine.add_run(record)
    run.touch(b"start", run_id.encode(), workflow.encode(), args, seed)
    machine.mark_run(run)
    machine.draft(Kind.RUN_STARTED, values.pack([run_id, workflow, args]), correlation=run_id)
    machine.now.ready.append(run_id)
    return run


def hold_child(run: Run, number: int, params: bytes, *, run_id: str) -> Held:
    """A run's CHILD or START operation as what it asks for: a run whose end is the operation's outcome."""
    op = run.record.ops[number]
    seed = digest.hash_parts(b"child", run.record.seed, number.to_bytes(4, "big"))
    return Held(run.record.id, number, op.kind, op.name, params, 0, run_id or child_id(run, number), seed)


def start_child(machine: Machine, held: Held) -> None:
    if held.id in machine.runs:
        _attach(machine, machine.runs[held.id], held)
        return
    named = held.kind is OpKind.START and not held.id.startswith(f"{held.run}/")
    start(
        machine, run_id=held.id, workflow=held.name, args=held.params, seed=held.seed, named=named,
        parent=held.run, parent_op=held.op,
    )  # fmt: skip


def _attach(machine: Machine, known: Run, held: Held) -> None:
    """The id is taken: by the same call, then its run is the one that was asked for; else the operation has failed.

    Who attaches waits for the run and does not own it: giving up the wait leaves the run alone.
    """
    record = known.record
    if held.run == held.id or held.kind is not OpKind.START or not runs.is_same(record, held.name, held.params):
        message = str(errors.IdReused(held.id))
        machine.arrive(held.run, held.op, runs.failed(errors.IdReused.code, message))
    elif not known.live:
        machine.arrive(held.run, held.op, runs.outcome_of(record))
    elif len(record.followers) >= FOLLOWERS_MAX:
        why = f"{FOLLOWERS_MAX} operations wait for run {held.id!r} already"
        machine.arrive(held.run, held.op, runs.failed("limit_exceeded", why))
    elif held.run:
        record.followers.append(runs.Follower(held.run, held.op))
        known.touch(b"follow", held.run.encode(), held.op.to_bytes(4, "big"))
        machine.mark_run(known)


def child_id(run: Run, number: int) -> str:
    """Unique in the world: by the operation, by how often the parent has continued as new, by the parent's own id."""
    parent, again = run.record.id, run.record.again
    if len(parent) > CHILD_ID_CHARACTERS_MAX:
        parent = digest.sha256(parent.encode()).hex()[:32]
    return f"{parent}/{again}.{number}" if again else f"{parent}/{number}"


def drain(machine: Machine) -> None:
    """Let every run go on that can, until all wait; or until the step is full, then the others do in the next."""
    now = machine.now
    while now.ready:
        if now.full:
            machine.later.extend(dict.fromkeys(now.ready))
            now.ready.clear()
            return
        run = machine.runs.get(now.ready.popleft())
        if run is None or run.record.status is not RunStatus.RUNNING:
            continue
        now.turns += 1
        try:
            _advance(machine, run)
        except failures.Diverged as error:
            block(machine, run, error.report)


def _advance(machine: Machine, run: Run) -> None:
    now = machine.now
    if run.coroutine is None:
        rebuild(machine, run)
        _look_again(machine, run)
    if run.waiting is None:  # a new run: everything up to its first await
        run.time_us = run.record.started_us = now.context.time_us
        _feed(machine, run, None)
    while run.live and run.waiting is not None:
        resume = _next(machine, run)
        if resume is None:
            return
        if now.full:
            now.ready.append(run.record.id)
            return
        now.turns += 1
        _apply(machine, run, resume)
        run.record.log.append(resume)
        run.time_us = resume.time_us
        _feed(machine, run, resume)


def _next(machine: Machine, run: Run) -> Resume | None:
    """What the run is to be fed with now, or None while it has to wait."""
    time_us = machine.now.context.time_us
    for interrupt in run.record.interrupts:
        if run.inside(interrupt.scope) and not run.shielded(interrupt.scope):
            return Resume(time_us, scope=interrupt.scope, reason=interrupt.reason)
    ops = run.record.ops
    waiting = run.waiting
    assert isinstance(waiting, All | First)
    if isinstance(waiting, All) and not run.alarmed and _not_yet(run, waiting):
        return None  # looked at before, and no operation has failed since: thousands are not asked each time
    run.alarmed = False
    done = 0
    for number in waiting.ops:
        outcome = ops[number].outcome
        if outcome is not None:
            if outcome.status is not ReceiptStatus.OK:
                return Resume(time_us, failed=number)
            done += 1
    enough = 1 if isinstance(waiting, First) else len(waiting.ops)
    return Resume(time_us) if done >= enough else None


def _not_yet(run: Run, waiting: All) -> bool:
    """Whether some operation is not done, as far as can be told from where the last look ended."""
    if waiting.done < 0:
        waiting.done = 0
        return False
    while waiting.done < len(waiting.ops) and run.record.ops[waiting.ops[waiting.done]].outcome is not None:
        waiting.done += 1
    return waiting.done < len(waiting.ops)


def _apply(machine: Machine, run: Run, resume: Resume) -> None:
    """What a feeding does besides: a delivered interrupt is gone, and what is no longer waited for is given up."""
    waiting = run.waiting
    assert isinstance(waiting, All | First)
    if resume.scope >= 0:
        delivered = Interrupt(resume.scope, resume.reason)
        run.record.interrupts.remove(delivered)
    if resume.scope >= 0 or resume.failed >= 0:
        for number in waiting.ops:
            if run.record.ops[number].kind not in runs.OUTLIVE:
                machine.cancel_op(run, number, resume.reason or "another operation failed")


def _feed(machine: Machine, run: Run, resume: Resume | None) -> None:
    """Run the coroutine to its next await, or to its end."""
    coroutine = run.coroutine
    assert coroutine is not None
    hands = handling.Handling(machine, time_us=run.time_us, seed=run.record.seed, run=run)
    token = context.current.set(hands)
    try:
        run.waiting = _to_next_await(coroutine, run, resume)
        hands.check_lost()
    except StopIteration as stop:
        _finish(machine, run, stop.value, hands)
    except ContinueAsNew as again:
        if run.continuing is None:  # raised by the code itself, with what it likes
            _end(machine, run, RunStatus.FAILED, failure_of(again))
        else:
            _continue(machine, run, *run.continuing)
    except failures.Cancelled as cancelled:
        _end(machine, run, RunStatus.CANCELLED, runs.failure("cancelled", user_errors.text_of(cancelled)))
    except BaseException as error:  # whatever the user's code raises is the run's result
        if user_errors.let_pass(error):
            raise
        _end(machine, run, RunStatus.FAILED, failure_of(error))
    finally:
        context.current.reset(token)


def _to_next_await(coroutine: Coroutine[Any, Any, Any], run: Run, resume: Resume | None) -> Await:
    yielded = _send(coroutine, run, resume)
    for _ in range(FOREIGN_AWAITS_MAX):
        if (type(yielded) is All or type(yielded) is First) and _is_possible(run, yielded):
            return yielded
        what = user_errors.name_of(type(yielded))
        yielded = stack.call(coroutine.throw, failures.NotDurable(f"awaited {what}: {user_errors.HINT}"))
    what = user_errors.name_of(type(yielded))
    raise failures.NotDurable(f"awaited {what} again and again: {user_errors.HINT}")


def _is_possible(run: Run, waiting: All | First) -> bool:
    """Whether a record names operations that the run has issued. One that the kernel's own API made always does; user
    code can make others.
    """
    ops = waiting.ops
    issued = run.issued
    if type(ops) is tuple and ops and (type(waiting) is All or len(ops) == 2):
        for number in ops:
            if type(number) is not int or not 0 <= number < issued:
                break
        else:
            return True
    hands: Any = context.current.get()
    return type(hands) is runs.Nowhere  # it was stopped, and what it awaits never comes


def _send(coroutine: Coroutine[Any, Any, Any], run: Run, resume: Resume | None) -> Any:
    if resume is None:
        return stack.call(coroutine.send, None)
    ops = run.record.ops
    if resume.scope >= 0:
        cancelled = failures.Cancelled(resume.reason)
        cancelled.scope = resume.scope  # type: ignore[attr-defined]
        return stack.call(coroutine.throw, cancelled)
    if resume.failed >= 0:
        return stack.call(coroutine.throw, error_of(ops[resume.failed]))
    waiting = run.waiting
    assert isinstance(waiting, All | First)
    done = [ops[number].outcome for number in waiting.ops]
    # An operation given up later has an outcome too by the time a run is rebuilt; the run never went on with that.
    fed = (None if each is None or each.status is not ReceiptStatus.OK else each.data for each in done)
    return stack.call(coroutine.send, tuple(fed))


def rebuild(machine: Machine, run: Run) -> None:
    """Make the coroutine anew and feed it everything it was fed before. `Diverged` if the code does something else."""
    flow = machine.program.workflows.get(run.record.workflow)
    if flow is None:
        raise failures.Diverged(
            f"run {run.record.id!r}: program {machine.program.name!r} has no workflow {run.record.workflow!r}"
        )
    run.cool()
    try:
        args, kwargs = flow.signature.unpack(run.record.args)
        run.coroutine = flow.function(*args, **kwargs)
    except BaseException as error:  # also what a decorator around the function raises
        if user_errors.let_pass(error):
            raise
        why = user_errors.text_of(error)
        raise failures.Diverged(f"run {run.record.id!r}: its arguments do not fit {flow.name}(): {why}") from error
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
    token = context.current.set(hands)
    try:
        run.waiting = _to_next_await(run.coroutine, run, resume)
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


def block(machine: Machine, run: Run, report: str) -> None:
    """The code does not fit the record: keep the run as it is until code that fits comes."""
    run.cool()
    run.record.status = RunStatus.BLOCKED
    run.record.blocked = runs.storable(report)
    machine.mark_run(run)


def interrupt(machine: Machine, run: Run, scope: int, reason: str) -> None:
    """Cancel a scope of a run, or all of it (0), once no shield is in the way."""
    pending = [each.scope for each in run.record.interrupts]
    if run.live and scope not in pending:
        machine.now.half_done += 1
        run.record.interrupts.append(Interrupt(scope, runs.storable(reason)))
        run.touch(b"interrupt", scope.to_bytes(4, "big"), runs.storable(reason).encode())
        machine.mark_run(run)
        machine.now.ready.append(run.record.id)
        machine.now.half_done -= 1


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
    _look_again(machine, run)


def _look_again(machine: Machine, run: Run) -> None:
    """Events may have come for waits that are under way: now, or while the run was blocked."""
    for number in list(run.wheres):
        if run.record.ops[number].outcome is None:
            look_in_buffer(machine, run, number)


def look_in_buffer(machine: Machine, run: Run, number: int) -> None:
    """Answer a wait with the first buffered event that fits it."""
    if run.rebuilding:
        return
    kind, where = run.wheres[number]
    schema = run.record.ops[number].name
    for index, buffered in enumerate(run.record.buffer):
        if buffered.schema != schema:
            continue
        outcome = _try(kind, where, buffered.data)
        if outcome is not None:
            if outcome.status is ReceiptStatus.OK:
                del run.record.buffer[index]
            machine.arrive(run.record.id, number, outcome)
            return


def _try(kind: type, where: Any, data: bytes) -> runs.Outcome | None:
    """An event as the outcome of a wait, if it fits. A condition that raises fails the wait."""
    if where is not None:
        try:
            if not stack.call(where, values.load(kind, data)):
                return None
        except BaseException as error:  # it is the user's code
            if user_errors.let_pass(error):
                raise
            message = f"where= raised {user_errors.message_of(error)}"
            return runs.failed(user_errors.code_of(error), message, data=failure.data_of(error))
    return runs.Outcome(ReceiptStatus.OK, data)


def _finish(machine: Machine, run: Run, result: object, hands: handling.Handling) -> None:
    try:
        hands.check_calls()
        data = values.dump(result)
    except failures.NotDurable as error:
        _end(machine, run, RunStatus.FAILED, runs.failure(error.code, str(error)))
    except errors.EncodeError as error:
        _end(machine, run, RunStatus.FAILED, runs.failure(error.code, f"the result: {error}"))
    else:
        _end(machine, run, RunStatus.FINISHED, data)


def _end(machine: Machine, run: Run, status: RunStatus, data: bytes) -> None:
    machine.end_run(run, status, data)


def _continue(machine: Machine, run: Run, workflow: str, args: bytes) -> None:
    """Start over under the same id, with nothing recorded yet."""
    record = run.record
    for number, op in enumerate(record.ops):
        if op.outcome is None and op.kind not in runs.OUTLIVE:
            machine.cancel_op(run, number, "continued as new")
    for child in machine.live_runs():
        if child.record.parent == record.id:
            child.record.parent = ""  # nobody is left who could wait for it
        child.record.followers = [each for each in child.record.followers if each.run != record.id]
    machine.release_held(run)
    record.origin = record.origin or runs.origin(record.workflow, record.args)
    machine.relist(run, workflow)
    record.args = args
    record.seed = digest.hash_parts(b"again", record.seed)
    record.again += 1
    record.ops, record.log, record.interrupts = [], [], []
    record.started_us = machine.now.context.time_us
    run.cool()
    record.digest = b""
    run.touch(b"start", record.id.encode(), record.workflow.encode(), record.args, record.seed)
    machine.mark_run(run)
    machine.draft(Kind.RUN_STARTED, values.pack([record.id, record.workflow, record.args]), correlation=record.id)
    machine.now.ready.append(record.id)


class ContinueAsNew(BaseException):
    """Ends a run's code. What it goes on with is noted in the run."""


def error_of(op: runs.Op) -> BaseException:
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


def failure_of(error: BaseException) -> bytes:
    """What user code raised, as it is journaled."""
    return runs.failure(user_errors.code_of(error), user_errors.message_of(error), data=failure.data_of(error))
