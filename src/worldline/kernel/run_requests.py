"""What runs ask for: their operations become effects, timers, messages and other runs, and get outcomes.

A run's operation is issued, asked for now or in a step that follows (`DeferredOperation`), and is done when it has an
outcome: the answer that arrived, or the failure that says it was given up.
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from worldline.base import errors, failures, grammar, limits
from worldline.base.failures import CancelKind
from worldline.codec import canonical, digest, structs
from worldline.flow_core import flow_records
from worldline.kernel import halts, runs, user_values
from worldline.kernel.authoring import calls, message_calls
from worldline.kernel.authoring.program import Program
from worldline.kernel.machine import Machine
from worldline.kernel.rows.row_records import DeferredOperation, Op, Outcome, Parked, Record
from worldline.kernel.run_operations import OpKind
from worldline.kernel.runs import LiveRun
from worldline.model import ids, inbox, payload, step_records
from worldline.model.inbox import MessageMode, ReceiptStatus, Reply
from worldline.model.journal import Kind
from worldline.model.work import WorkKind

FOLLOWERS_MAX = 4_096
DRY = "the world is a dry fork: nothing leaves it; answer it, or fork with live=True"

_EFFECT = tuple[bytes, bytes]
_EFFECT_OP, _AFTER = OpKind.EFFECT, OpKind.AFTER
_EFFECT_WORK, _TIMER_WORK = WorkKind.EFFECT, WorkKind.TIMER
_OUTSIDE = (OpKind.EFFECT, OpKind.TIMER, OpKind.AFTER)
_RUNS = (OpKind.CHILD, OpKind.START)
_MESSAGES = (OpKind.SEND, OpKind.ASK)
_SEND, _ACT, _OK = OpKind.SEND, OpKind.ACT, ReceiptStatus.OK


def check_known(program: Program, target: calls.Target) -> None:
    """Refuse a call of an effect or workflow that is not one of the program's."""
    known: Any = program.workflows.get(target.name) if target.kind == "workflow" else program.find_effect(target.name)
    # The function counts and not only the name, which another program may have, too.
    if known is None or known.function is not target.function:
        other = target.program
        whose = f"; it is one of {other!r}: declare it here, or ask a world of that program" if other else ""
        raise errors.BadInput(f"{target.kind} {target.name} is not one of program {program.name!r}{whose}")


def pack_call(call: calls.Call[Any], *, again: bool) -> bytes:
    """The parameters of an operation that calls an effect or a workflow. `again`: it was asked for before, and is not
    checked any more: an edit may have changed the types since, or a person has answered what did not fit.
    """
    arguments = call.pack() if again else call.pack_checked()
    return arguments if call.target.kind == "workflow" else pack_effect(call, arguments)


def pack_effect(call: calls.Call[Any], arguments: bytes) -> bytes:
    """Return an effect's parameters as they leave the world: its packed arguments, then the options of this call."""
    if call.target.signature.needs_snapshot:
        raise errors.BadInput(
            f"{call.target.name}() takes the snapshot of a flow domain: only an action of one can ask for it"
        )
    options = b"" if call.options is None else call.options.pack()
    return user_values.bounded(user_values.pack([arguments, options]), f"a call of {call.target.name}()")


def unpack_effect(params: bytes) -> tuple[bytes, calls.Options]:
    arguments, options, _ = _split_effect(params)
    return arguments, structs.decode(calls.Options, options) if options else calls.PLAIN


def attached_snapshot(params: bytes) -> flow_records.Snapshot | None:
    """The snapshot that has left the world with the parameters of a flow domain's effect, frozen; None if none has."""
    attached = _split_effect(params)[2]
    return flow_records.frozen(flow_records.decoded(canonical.decode(attached))) if attached else None


def _split_effect(params: bytes) -> tuple[bytes, bytes, bytes]:
    found = canonical.decode(params)
    match found:
        case [bytes(arguments), bytes(options)]:  # by hand: checking it against the type takes five times as long
            return arguments, options, b""
        case [bytes(arguments), bytes(options), bytes(attached)]:
            return arguments, options, attached
    arguments, options = user_values.rebuild(_EFFECT, found)
    return arguments, options, b""


# --- Asking ----------------------------------------------------------------------------------------------------


def issued(machine: Machine, run: LiveRun, number: int, params: bytes, *, delay_us: int = 0, run_id: str = "") -> None:
    """Do what an operation asks for that a run has just issued."""
    op = run.record.ops[number]
    if op.kind in _OUTSIDE:
        due_us = machine.now.context.store_us + delay_us
        ask_for(machine, DeferredOperation(run.record.id, number, op.kind, op.name, params, due_us))
    elif op.kind in _RUNS:
        # A seed that follows from the run's own, so the same children come out when the step is done again.
        seed = digest.hash_parts(b"child", run.record.seed, number.to_bytes(4, "big"))
        child = run_id or runs.child_id(run, number)
        ask_for(machine, DeferredOperation(run.record.id, number, op.kind, op.name, params, 0, child, seed))
    elif op.kind in _MESSAGES and message_calls.destination(op.name).is_near:
        _send(machine, run, number, params)
    elif op.kind in _MESSAGES:
        due_us = machine.now.context.store_us
        ask_for(machine, DeferredOperation(run.record.id, number, op.kind, op.name, params, due_us))
    elif op.kind is _ACT:
        intent = digest.hash_parts(b"act", run.record.seed, runs.child_id(run, number).encode()).hex()[:32]
        ask_for(machine, DeferredOperation(run.record.id, number, op.kind, op.name, params, 0, intent))


def ask_for(machine: Machine, held: DeferredOperation) -> None:
    """Ask for an effect, timer, run or intent now if the step has room for it, else in a step that follows at once."""
    # Nothing overtakes what is held back: work is asked for in the order of the code.
    if machine.work.unsent.items or not machine.now.has_room:
        machine.work.unsent.append(held)
    else:
        _ask_now(machine, held)


def ask_for_timer(machine: Machine, name: str, due_us: int) -> None:
    """Ask for a timer that belongs to a schedule and not to a run."""
    ask_for(machine, DeferredOperation("", -1, OpKind.TIMER, name, b"", due_us))


def send_held_back(machine: Machine) -> None:
    """Ask for what earlier steps had no room for, as far as this one has."""
    while machine.work.unsent.items and machine.now.has_room:
        _ask_now(machine, machine.work.unsent.popleft())


def _ask_now(machine: Machine, held: DeferredOperation) -> None:
    run = machine.runs.get(held.run)
    live = run is not None and run.live
    if run is not None and live and run.record.ops[held.op].outcome is not None:
        return  # given up while it was held back
    if held.kind in _RUNS:
        _start_child(machine, held)
        return
    if held.kind in _MESSAGES:
        _send_away(machine, run, held)
        return
    if held.kind is _ACT:
        machine.domains.want(held)
        return
    deadline_us = 0
    kind = held.kind
    params = held.params
    if kind is _EFFECT_OP:
        if machine.branch is not None:
            if _scripted(machine, held.run, held.op, effect_arguments(params)) or _scripted_requirement(machine, held):
                return
            params = _prefixed(params, machine.branch.prefix)
        # The program had the effect when it was issued; while it was held back, the program may have changed. It is
        # asked for all the same: like all work that no program here serves, it waits in its queue for one that does.
        within_us = _total_timeout_us(machine, held)
        deadline_us = 0 if within_us is None else held.due_us + within_us
    parked = DRY if kind is _EFFECT_OP and machine.branch is not None and machine.branch.dry else ""
    pending = machine.work.want(
        _EFFECT_WORK if kind is _EFFECT_OP else _TIMER_WORK,
        held.name,
        params,
        due_us=held.due_us,
        deadline_us=deadline_us,
        # An event to be raised later belongs to the world: it outlives the run that asked for it.
        run="" if kind is _AFTER else held.run,
        op=held.op,
        event=held.name if kind is _AFTER else held.id if kind is _EFFECT_OP else "",
        parked=parked,
        attached=held.attached,
        correlation_id=machine.now.correlation_id if run is None else run.record.correlation_id,
    )
    if run is not None and live:
        run.opened(held.op, pending)
        if parked:
            run.park(held.op, Parked(0, parked))
    elif parked:
        machine.work.park(pending, Parked(0, parked))
    if parked:
        halts.halt(machine, parked, held.run, effect=held.name, intent=pending.intent(machine.now.context.address))
    assert pending.number or live, "a run that ends releases what is held back for it"
    if run is None and kind is OpKind.TIMER:
        machine.arm_schedule(held.name, pending.number)


def _total_timeout_us(machine: Machine, held: DeferredOperation) -> int | None:
    """Of what a flow domain requires, the state says it: no program is needed to run that again."""
    if not held.run and held.id:
        return machine.domains.deadlines.get(held.name)
    effect = machine.program.find_effect(held.name)
    return None if effect is None else effect.total_timeout_us


def _send(machine: Machine, run: LiveRun, number: int, params: bytes) -> None:
    """A run's SEND or ASK. The role delivers the message with this step's commit and answers a SEND with a receipt."""
    op = run.record.ops[number]
    context = machine.now.context
    content = message_calls.unpack(params)
    branch = machine.branch
    asks = op.kind is OpKind.ASK
    if branch is not None and asks and _scripted(machine, run.record.id, number, {"event": content.name}):
        return
    if branch is not None and branch.dry and op.kind is OpKind.SEND:
        _answer_here(machine, run.record.id, number, Outcome(ReceiptStatus.OK, user_values.NONE))  # it goes nowhere
        return
    pending, intent = machine.work.want_message(op.name, params, run=run.record.id, op=number, asks=asks)
    run.opened(number, pending)
    if branch is not None and branch.dry:
        run.park(number, Parked(0, DRY))
        return
    item = inbox.Message(
        intent,
        context.address.universe,
        context.address.world,
        context.step,
        MessageMode.INBOX if content.inbox else MessageMode.TYPED,
        content.name,
        payload.EMPTY,
        content.headers,
        correlation=content.correlation or run.record.correlation_id or intent.hex(),
        to=content.to,
        reply=Reply.MESSAGE if asks else Reply.NONE,
    )
    said = user_values.pack([pending.ordinal, op.name, content.label, content.data])
    machine.draft(Kind.MESSAGE_SENT, said, correlation=intent.hex())
    to = message_calls.destination(op.name)
    key = ids.question_key(intent, pending.secret) if pending.secret else b""
    machine.now.outgoing.append(step_records.Outgoing(intent, to.world, None, item, content.data, key))


def _send_away(machine: Machine, run: LiveRun | None, held: DeferredOperation) -> None:
    """A message for a world of another universe is an effect, which any host performs. So is an answer to one."""
    want = functools.partial(machine.work.want, _EFFECT_WORK, due_us=held.due_us, deadline_us=0, op=held.op)
    if run is None:
        want(held.name, held.params, run="")
        return
    branch, asks = machine.branch, held.kind is OpKind.ASK
    if branch is not None and asks:
        if _scripted(machine, held.run, held.op, {"event": message_calls.unpack(held.params).name}):
            return
    elif branch is not None and branch.dry:
        _answer_here(machine, held.run, held.op, Outcome(ReceiptStatus.OK, user_values.NONE))  # it goes nowhere
        return
    parked = DRY if branch is not None and branch.dry else ""
    arguments = user_values.dump({"to": held.name, "content": held.params, "ask": asks})
    pending = want(message_calls.SEND, user_values.pack([arguments, b""]), run=held.run, parked=parked)
    run.opened(held.op, pending)
    if parked:
        run.park(held.op, Parked(0, parked))


def reply_away(machine: Machine, asked: inbox.Message, *, ok: bool, data: bytes) -> None:
    """Answer a question that an effect has brought here: the answer becomes the receipt of that effect."""
    arguments = user_values.dump(
        {"universe": asked.from_universe, "world": asked.from_world, "question": asked.message, "ok": ok, "data": data}
    )
    params = user_values.pack([arguments, b""])
    ask_for(machine, DeferredOperation("", -1, OpKind.SEND, message_calls.REPLY, params, machine.now.context.store_us))


# --- Of forks --------------------------------------------------------------------------------------------------


def effect_arguments(params: bytes) -> dict[str, Any]:
    """What an effect was called with, as plain data by name."""
    arguments, _, _ = _split_effect(params)
    given = canonical.decode(arguments)
    return {str(key): value for key, value in given.items()} if isinstance(given, dict) else {}


def _scripted(machine: Machine, run_id: str, number: int, arguments: dict[str, Any]) -> bool:
    """Return whether the script of a fork has answered an operation."""
    assert machine.branch is not None
    run = machine.runs.get(run_id)
    if run is None or not run.live:
        return False
    op = run.record.ops[number]
    outcome = machine.branch.answer(op.name, arguments, ask=op.kind is OpKind.ASK)
    if outcome is not None:
        _answer_here(machine, run_id, number, outcome)
    return outcome is not None


def _scripted_requirement(machine: Machine, held: DeferredOperation) -> bool:
    """Return whether the script of a fork has answered what a flow domain requires."""
    assert machine.branch is not None
    if held.run or not held.id:
        return False
    outcome = machine.branch.answer(held.name, effect_arguments(held.params))
    if outcome is not None:
        scripted(machine, "", -1, Op(OpKind.EFFECT, held.name, held.params), outcome)
        machine.domains.answer(held.id, outcome)
    return outcome is not None


def _answer_here(machine: Machine, run_id: str, number: int, outcome: Outcome) -> None:
    """Answer an operation of a fork inside of it."""
    op = machine.runs[run_id].record.ops[number]
    scripted(machine, run_id, number, op, outcome)
    arrive(machine, run_id, number, outcome)


def scripted(machine: Machine, run_id: str, number: int, op: Op, outcome: Outcome) -> None:
    """Journal that a fork has answered an operation itself, with what was asked."""
    said: list[str | bytes | int] = [
        run_id,
        number,
        int(op.kind),
        op.name,
        op.params,
        int(outcome.status),
        outcome.data,
    ]
    machine.draft(Kind.SCRIPTED, user_values.pack(said), correlation=run_id)


def _prefixed(params: bytes, prefix: str) -> bytes:
    """Return the parameters of an effect, with the idempotency key that its caller chose made the branch's own."""
    arguments, options = unpack_effect(params)
    # Only keys that callers chose: any other is made of the intent's id, which is the fork's own.
    if not prefix or options.key is None:
        return params
    return user_values.pack([arguments, msgspec.structs.replace(options, key=f"{prefix}{options.key}").pack()])


# --- Runs ------------------------------------------------------------------------------------------------------


def start_run(
    machine: Machine,
    *,
    run_id: str,
    workflow: str,
    args: bytes,
    seed: bytes,
    named: bool,
    parent: str = "",
    parent_op: int = -1,
    correlation_id: str = "",
) -> LiveRun:
    """Start a new run. Its code runs for the first time later in this step."""
    record = Record(
        run_id,
        workflow,
        args,
        seed,
        named,
        machine.now.context.time_us,
        parent=parent,
        parent_op=parent_op,
        interests=machine.program.interests(workflow),
        ops=[],
        log=[],
    )
    if correlation_id:
        record.correlate(correlation_id)
    run = machine.add_run(record)
    machine.draft(Kind.RUN_STARTED, user_values.pack([run_id, workflow, args]), correlation=run_id)
    machine.now.ready.append(run_id)
    return run


def _start_child(machine: Machine, held: DeferredOperation) -> None:
    """Start a run whose end is the outcome of a CHILD or START operation."""
    if held.id in machine.runs:
        _attach(machine, machine.runs[held.id], held)
        return
    why = _too_many(machine, held)
    if why:
        machine.now.warn(why)  # the code may never wait for a run that it has started
        arrive(machine, held.run, held.op, runs.failed(failures.TooManyRuns.code, why))
        return
    # An id that is derived from the run's is no choice of its starter, so the run may be forgotten.
    named = held.kind is OpKind.START and not held.id.startswith(f"{held.run}/")
    start_run(
        machine,
        run_id=held.id,
        workflow=held.name,
        args=held.params,
        seed=held.seed,
        named=named,
        parent=held.run,
        parent_op=held.op,
        correlation_id=correlation_id_of(machine, held.run),
    )


def correlation_id_of(machine: Machine, run_id: str) -> str:
    """That of a run; without one, that of the step's input."""
    run = machine.runs.get(run_id) if run_id else None
    return machine.now.correlation_id if run is None else run.record.correlation_id


def _too_many(machine: Machine, held: DeferredOperation) -> str:
    """Say why no further run is started for a run, and what to do; empty if one may be."""
    children = machine.children
    if children.count >= limits.WORLD_CHILDREN_MAX:
        full = f"{grammar.count(children.count, 'run')} of this world that others started have not ended: the limit"
        advice = "start fewer at a time, or run some of them in a world of their own"
    elif children.of(held.run) >= limits.RUN_CHILDREN_MAX:
        full = f"it has started {grammar.count(children.of(held.run), 'run')} that have not ended, which is the limit"
        advice = "start fewer at a time in a wl.scope(), use wl.continue_as_new(), or a world of their own"
    elif _depth(machine, held.run) >= limits.RUN_DEPTH_MAX:
        full = f"it is the last of {limits.RUN_DEPTH_MAX} runs that were started one by the other, which is the limit"
        advice = "use a loop or wl.continue_as_new() in place of the recursion, or a world of its own"
    else:
        return ""
    return f"run {held.run!r} cannot start {held.name!r}: {full}; {advice}"


def _depth(machine: Machine, run_id: str) -> int:
    """Say how many live runs are one inside the other here: this one, the one that started it, and so on."""
    depth = 0
    # Counted up to the limit: a chain may be as long as users make it.
    while (run := machine.live.get(run_id)) is not None and depth < limits.RUN_DEPTH_MAX:
        depth += 1
        run_id = run.record.parent
    return depth


def _attach(machine: Machine, known: LiveRun, held: DeferredOperation) -> None:
    """The id is in use. If the same call uses it, its run is the one that was asked for; else the operation has failed.

    The operation waits for the run and does not own it: if the operation is given up, the run continues.
    """
    record = known.record
    # A run cannot wait for itself, and only START may share a run with others.
    if held.run == held.id or held.kind is not OpKind.START or not runs.is_same(record, held.name, held.params):
        message = str(errors.IdReused(held.id))
        arrive(machine, held.run, held.op, runs.failed(errors.IdReused.code, message))
    elif not known.live:
        arrive(machine, held.run, held.op, runs.outcome_of(record))
    elif len(record.followers) >= FOLLOWERS_MAX:
        why = f"{FOLLOWERS_MAX} operations wait for run {held.id!r} already"
        arrive(machine, held.run, held.op, runs.failed("limit_exceeded", why))
    elif held.run:
        known.follow(held.run, held.op)


def interrupt(machine: Machine, run: LiveRun, scope: int, reason: str, kind: CancelKind) -> None:
    """Cancel a scope of a run, or the whole run (0), when no shield is in the way."""
    # A second cancellation of the same scope adds nothing: the first reason stays.
    pending = [each.scope for each in run.record.interrupts]
    if run.live and scope not in pending:
        now = machine.now
        now.begin_change()
        run.interrupt(scope, reason, kind)
        now.ready.append(run.record.id)
        now.end_change()


# --- Outcomes --------------------------------------------------------------------------------------------------


def arrive(machine: Machine, run_id: str, number: int, outcome: Outcome) -> None:
    """Give an operation its outcome. Its run continues later in this step, if that is what it waits for."""
    run = machine.runs.get(run_id)
    # Late, or once more: the first outcome counts.
    if run is None or not run.live or number >= len(run.record.ops) or run.record.ops[number].outcome is not None:
        return
    # A receipt says only where the message lies, which differs between worlds that live the same.
    if run.record.ops[number].kind is _SEND and outcome.status is _OK:
        outcome = Outcome(_OK, outcome.data, placed=True)
    run.answer(number, outcome)
    machine.now.ready.append(run_id)


def cancel_op(machine: Machine, run: LiveRun, number: int, reason: str) -> None:
    """Give up an operation that its run does not wait for any more."""
    op = run.record.ops[number]
    if run.rebuilding or op.outcome is not None:
        return
    outcome = runs.failed("cancelled", reason, status=ReceiptStatus.CANCELLED)
    now = machine.now
    now.begin_change()
    run.give_up(number, outcome)
    if op.kind in _RUNS:
        _cancel_child(machine, machine.child_of(run, number), reason, CancelKind.PARENT)
    machine.work.give_up_of(op)
    now.end_change()


def end_op(machine: Machine, run: LiveRun, number: int, reason: str, kind: CancelKind) -> None:
    """Cancel an operation. A child is told to end, and the operation is done when it has ended; anything else, and a
    child that has not begun, is given up.
    """
    op = run.record.ops[number]
    if run.rebuilding or op.outcome is not None:
        return
    child = machine.child_of(run, number) if op.kind is OpKind.CHILD else None
    if child is None or not child.live:
        cancel_op(machine, run, number, reason)
    else:
        _cancel_child(machine, child, reason, kind)


def _cancel_child(machine: Machine, child: LiveRun | None, reason: str, kind: CancelKind) -> None:
    """Cancel a child, once: a run that was cancelled before is left to clean up."""
    if child is not None and not child.record.was_cancelled:
        interrupt(machine, child, 0, reason, kind)
