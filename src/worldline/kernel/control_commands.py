"""Control inputs: starting and cancelling runs, changing the program. Each is answered in the journal."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from worldline.base import errors, failures
from worldline.base.failures import CancelKind
from worldline.codec import structs
from worldline.kernel import (
    event_dispatch,
    halts,
    part_inputs,
    run_repair,
    run_requests,
    runs,
    schedules,
    state_rows,
    state_witness,
    user_values,
)
from worldline.kernel import machine as state
from worldline.kernel.event_dispatch import Answer
from worldline.kernel.execution import coroutines
from worldline.kernel.machine import Machine
from worldline.kernel.parts import Command, StepParts
from worldline.kernel.rows.row_records import ENDED, Parked, Pending, RunStatus
from worldline.kernel.run_operations import OpKind
from worldline.kernel.runs import LiveRun
from worldline.model import ids, inbox, payload
from worldline.model.inbox import ReceiptStatus
from worldline.model.journal import Kind
from worldline.model.personal_records import Erase
from worldline.model.work import WorkKind

RUN = "run"
CANCEL = "cancel"
SCHEDULE = "schedule"
TRIGGER = "trigger"  # a schedule, by hand
PROGRAM = "program"
GIVE_UP = "give_up"  # a timer, by hand
CONTINUE = "continue"  # by the host itself, when a step left something for the next
PARK = "park"  # an effect is not tried any more, decided by its effect worker or by hand
RETRY = "retry"  # it is tried again
ERASE = "erase"  # personal values were erased

CONTINUED = inbox.Control(CONTINUE, payload.EMPTY)  # the input of such a step

# given by the worker that runs the world, never by the inbox
OF_WORKERS = (PROGRAM, part_inputs.FORKED, part_inputs.DOMAINS)

SLEEPS = ("sleep", "sleep_until")


class StartRun(msgspec.Struct, frozen=True, array_like=True):
    run: str
    workflow: str
    args: bytes
    seed: bytes
    named: bool


class CorrelatedRun(StartRun, frozen=True, array_like=True):
    """The same, with what its starter calls what it belongs to."""

    correlation_id: str = ""


def start_run(run: str, workflow: str, args: bytes, seed: bytes, *, named: bool, correlation_id: str = "") -> StartRun:
    """Return the command that starts a run."""
    if correlation_id:
        return CorrelatedRun(run, workflow, args, seed, named, correlation_id)
    return StartRun(run, workflow, args, seed, named)


class CancelRun(msgspec.Struct, frozen=True, array_like=True):
    """`kind`: one of `CANCELS`, for a caller that says it; the run is told."""

    run: str
    reason: str
    kind: CancelKind = CancelKind.USER


CANCELS = (CancelKind.USER, CancelKind.HOST, CancelKind.POLICY)  # what can be said from outside


class GiveUp(msgspec.Struct, frozen=True, array_like=True):
    intent: bytes
    reason: str


class ParkEffect(msgspec.Struct, frozen=True, array_like=True):
    intent: bytes
    attempts: int
    error: str


class RetryEffect(msgspec.Struct, frozen=True, array_like=True):
    intent: bytes


class ChangeProgram(msgspec.Struct, frozen=True, array_like=True):
    """The world continues under other code."""

    before: bytes
    after: bytes


class RunStanding(msgspec.Struct, frozen=True, array_like=True):
    """A run's status, as the answer to a RUN command. `data` is the result or Failure of one that has ended."""

    run: str
    status: RunStatus
    attached: bool
    data: bytes = b""


_CANCEL_NAMES = ", ".join(kind.name.lower() for kind in CANCELS)


def take(machine: Machine, item: inbox.Control, data: bytes, parts: StepParts, *, trusted: bool = False) -> str:
    """Do what a command says. `trusted`: run no user code, not even to see whether arguments fit."""
    known = _COMMANDS.get(item.command) or parts.commands.get(item.command)
    handler = _start_unseen if trusted and item.command == RUN else known
    if handler is None:
        reason = f"no command {item.command!r}"
        machine.draft(Kind.UNDECODABLE_INPUT, user_values.dump([reason]))
        return reason
    try:
        if item.command in OF_WORKERS and machine.now.drafts[0].stamp:  # every input of a producer has one
            raise errors.Closed("the worker that runs the world says this; no producer can send it")
        answered = handler(machine, data)
        if machine.domains.answered:  # by hand: what the outcome leads to comes before the answer to the person
            parts.domains.take_answered(machine)
        answer = Answer(True, answered)
    except errors.CannotStep:
        raise  # no answer: this process alone cannot make the step
    except errors.Error as error:
        answer = Answer(False, runs.failure(error.code, str(error)))
        # With no caller to answer, the refusal is a dead letter, where an operator finds it.
        if not item.correlation:
            machine.draft(Kind.UNDECODABLE_INPUT, user_values.dump([runs.storable(str(error))]))
            return f"{item.command}: {error}"
    if item.correlation:
        machine.draft(Kind.ANSWERED, structs.encode(answer), correlation=item.correlation)
    return ""


def _start_unseen(machine: Machine, data: bytes) -> bytes:
    return _run(machine, data, unseen=True)


def _run(machine: Machine, data: bytes, *, unseen: bool = False) -> bytes:
    wanted = structs.decode(CorrelatedRun, data)
    known = machine.runs.get(wanted.run)
    if known is not None:
        return _attach(known, wanted)
    flow = machine.program.workflows.get(wanted.workflow)
    if flow is None:
        raise errors.NotFound(f"program {machine.program.name!r} has no workflow {wanted.workflow!r}")
    # A trial: arguments that do not fit are refused here, where the caller gets the error.
    if not unseen:
        flow.signature.unpack(wanted.args)
    ids.check_name(wanted.run, "a run's id")
    run_requests.start_run(
        machine,
        run_id=wanted.run,
        workflow=wanted.workflow,
        args=wanted.args,
        seed=wanted.seed,
        named=wanted.named,
        correlation_id=wanted.correlation_id,
    )
    return structs.encode(RunStanding(wanted.run, RunStatus.RUNNING, attached=False))


def _attach(known: LiveRun, wanted: StartRun) -> bytes:
    record = known.record
    if not runs.is_same(record, wanted.workflow, wanted.args):
        raise errors.IdReused(wanted.run)
    return structs.encode(RunStanding(record.id, record.status, attached=True, data=record.data))


def _cancel(machine: Machine, data: bytes) -> bytes:
    wanted = structs.decode(CancelRun, data)
    run = machine.runs.get(wanted.run)
    if run is None:
        raise errors.NotFound(f"no run {wanted.run!r}")
    if wanted.kind not in CANCELS:
        raise errors.BadInput(f"a run is cancelled from outside as {_CANCEL_NAMES}, not as {wanted.kind.name.lower()}")
    # One that has ended is answered as it stands.
    if run.record.status not in ENDED:
        run_requests.interrupt(machine, run, 0, wanted.reason, wanted.kind)
    return structs.encode(RunStanding(run.record.id, run.record.status, attached=True, data=run.record.data))


def _program(machine: Machine, data: bytes) -> bytes:
    """Continue under this machine's program. Runs that were blocked are tried again, now; every other run gets the new
    code when it next continues, and is blocked then if that does not fit.
    """
    structs.decode(ChangeProgram, data)
    machine.origin.changed_program(machine.program.hash, step=machine.now.context.step)
    machine.draft(Kind.PROGRAM_CHANGED, data)
    for run in machine.live_runs():
        if run.record.status is RunStatus.BLOCKED:
            run.unblock()  # when it continues, it also gets the events that came while it was blocked
            machine.now.ready.append(run.record.id)
    return user_values.NONE


def misfits(machine: Machine, at: ids.Address) -> dict[str, str]:
    """The live runs that this machine's program does not fit, and the divergence of each: what would be blocked when
    they continue. They are tried on a copy, so nothing of the machine changes.
    """
    copy = state_rows.copy_of(machine, at)
    found: dict[str, str] = {}
    try:
        for run in copy.live_runs():
            try:
                coroutines.rebuild(copy, run)
            except failures.Diverged as error:
                found[run.record.id] = runs.storable(error.report)
    # A lack of memory says nothing of the code, so it is no divergence.
    except MemoryError as error:
        raise errors.CannotStep("the process has no memory left to try its program", lasting=False) from error
    finally:
        copy.close()
    return found


def _schedule(machine: Machine, data: bytes) -> bytes:
    """Answers whether the schedule was changed."""
    wanted = structs.decode(schedules.ScheduleChange, data)
    # Checked before anything is changed, so a refusal changes nothing.
    if wanted.spec is not None:
        schedules.check(machine, wanted.id, wanted.spec)
    return user_values.dump(schedules.change(machine, wanted.id, wanted.spec))


def _trigger(machine: Machine, data: bytes) -> bytes:
    """Answers the id of the run that it starts; nothing where it raises an event, which the step takes after this."""
    schedule = schedules.triggered(machine, structs.decode(schedules.Trigger, data).id)
    return user_values.dump(event_dispatch.scheduled(machine, schedule))


def _give_up(machine: Machine, data: bytes) -> bytes:
    """Cancel a timer. A run that sleeps gets an exception; where the timer was a timeout, there is none any more; with
    the timer of a schedule, the schedule is removed.
    """
    wanted = structs.decode(GiveUp, data)
    pending = machine.work.find_open(ids.IntentId(wanted.intent))
    if pending is None or pending.kind is not WorkKind.TIMER:
        raise errors.NotFound(f"no timer {wanted.intent.hex()} is set")
    # A schedule always has an open timer: without one it would stand still, and look alive.
    if not pending.run and pending.name.startswith(state.SCHEDULE_TIMER):
        schedules.remove(machine, state.schedule_id(pending.name))
        return user_values.NONE
    machine.work.give_up(pending)
    run = machine.runs.get(pending.run)
    if run is None:
        return user_values.NONE
    if run.record.ops[pending.op].kind is OpKind.TIMER and pending.name in SLEEPS:
        outcome = runs.failed("cancelled", wanted.reason, status=ReceiptStatus.CANCELLED)
        run_requests.arrive(machine, pending.run, pending.op, outcome)
    else:
        run.opened(pending.op, None)
    return user_values.NONE


def _park(machine: Machine, data: bytes) -> bytes:
    """Record that an effect is parked. No run continues because of it; `why` shows it, and repairs know it."""
    wanted = structs.decode(ParkEffect, data)
    pending = _open_effect(machine, wanted.intent)
    if pending is None or pending.parked is not None:
        # A command that crossed an answer on its way is no error: it is journaled as late.
        return _too_late(machine, PARK, wanted.intent, "nothing waits for it" if pending is None else "it is parked")
    parked = Parked(wanted.attempts, runs.storable(wanted.error))
    _set_parked(machine, pending, parked)
    halts.halt(machine, parked.error, pending.run, effect=pending.name, intent=wanted.intent)
    return user_values.NONE


def _retry(machine: Machine, data: bytes) -> bytes:
    """Record that a parked effect is tried again."""
    wanted = structs.decode(RetryEffect, data)
    pending = _open_effect(machine, wanted.intent)
    if pending is None or pending.parked is None:
        return _too_late(machine, RETRY, wanted.intent, "it is not parked")
    _set_parked(machine, pending, None)
    return user_values.NONE


def _set_parked(machine: Machine, pending: Pending, parked: Parked | None) -> None:
    # The row of a run's effect is that of its operation; any other effect has a row of its own.
    if pending.run:
        machine.runs[pending.run].park(pending.op, parked)
    else:
        machine.work.park(pending, parked)


def _open_effect(machine: Machine, intent: bytes) -> Pending | None:
    pending = machine.work.find_open(ids.IntentId(intent))
    return pending if pending is not None and pending.kind is WorkKind.EFFECT else None


def _too_late(machine: Machine, command: str, intent: bytes, why: str) -> bytes:
    machine.draft(Kind.LATE_ANSWER, user_values.dump([command, intent, why]))
    return user_values.NONE


def _continue(machine: Machine, data: bytes) -> bytes:  # noqa: ARG001 - every step asks for what was held back
    return user_values.NONE


def _erase(machine: Machine, data: bytes) -> bytes:
    """Record that personal values were erased. Warm coroutines may hold some: they are dropped, and rebuilt from their
    records when they are needed.
    """
    erased = structs.decode(Erase, data)
    # Rebuilt when they are needed, from records that have tokens alone.
    for run in machine.live_runs():
        run.cool()
    machine.vault.forget(erased.subject)
    machine.draft(Kind.ERASED, structs.encode(erased))
    return user_values.NONE


def _on_run(change: Callable[[Machine, bytes], LiveRun]) -> Callable[[Machine, bytes], bytes]:
    """A way out of a run: the answer is how the run stands then."""

    def handle(machine: Machine, data: bytes) -> bytes:
        record = change(machine, data).record
        return structs.encode(RunStanding(record.id, record.status, attached=True, data=record.data))

    return handle


def _answer_effect(machine: Machine, data: bytes) -> bytes:
    run_repair.answer_effect(machine, data)
    return user_values.NONE


# Those of the parts stand in `StepParts.commands`.
_COMMANDS: dict[str, Command] = {
    RUN: _run,
    CANCEL: _cancel,
    SCHEDULE: _schedule,
    TRIGGER: _trigger,
    PROGRAM: _program,
    GIVE_UP: _give_up,
    CONTINUE: _continue,
    state_witness.WITNESS: state_witness.witness,
    PARK: _park,
    RETRY: _retry,
    ERASE: _erase,
    run_repair.RETRY: _on_run(run_repair.retry),
    run_repair.RESET: _on_run(run_repair.reset),
    run_repair.TERMINATE: _on_run(run_repair.terminate),
    run_repair.ANSWER: _on_run(run_repair.answer),
    run_repair.ANSWER_EFFECT: _answer_effect,
}
