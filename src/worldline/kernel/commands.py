"""Control inputs: starting and cancelling runs, changing the program. Each is answered in the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from worldline.base import errors, failures
from worldline.codec import structs
from worldline.kernel import driver, handling, runs, schedules, values
from worldline.kernel.events import Answer
from worldline.kernel.runs import ENDED, OpKind, Parked, Run, RunStatus
from worldline.model import ids, inbox
from worldline.model.inbox import ReceiptStatus
from worldline.model.journal import Kind
from worldline.model.work import WorkKind

if TYPE_CHECKING:
    from worldline.kernel.machine import Machine, Pending

RUN = "run"
CANCEL = "cancel"
SCHEDULE = "schedule"
PROGRAM = "program"
GIVE_UP = "give_up"  # a timer, by hand
CONTINUE = "continue"  # by the holder itself, when a step left something for the next
PARK = "park"  # an effect was set aside, by its adapter or by hand
RETRY = "retry"  # it is tried again

SLEEPS = ("sleep", "sleep_until")


class StartRun(msgspec.Struct, frozen=True, array_like=True):
    run: str
    workflow: str
    args: bytes
    seed: bytes
    named: bool


class CancelRun(msgspec.Struct, frozen=True, array_like=True):
    run: str
    reason: str


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
    """The world goes on under other code. `blocked`: the runs that the new code does not fit, and why."""

    before: bytes
    after: bytes
    blocked: dict[str, str]


class Standing(msgspec.Struct, frozen=True, array_like=True):
    """How a run stands, as the answer to a RUN command. `data` is the result or Failure of one that has ended."""

    run: str
    status: RunStatus
    attached: bool
    data: bytes = b""


def take(machine: Machine, item: inbox.Control, data: bytes) -> str:
    handler = _COMMANDS.get(item.command)
    if handler is None:
        reason = f"no command {item.command!r}"
        machine.draft(Kind.UNDECODABLE_INPUT, values.dump([reason]))
        return reason
    try:
        answer = Answer(True, handler(machine, data))
    except errors.CannotStep:
        raise
    except errors.Error as error:
        answer = Answer(False, runs.failure(error.code, str(error)))
        if not item.correlation:
            machine.draft(Kind.UNDECODABLE_INPUT, values.dump([runs.storable(str(error))]))
            return f"{item.command}: {error}"
    if item.correlation:
        machine.draft(Kind.ANSWERED, structs.encode(answer), correlation=item.correlation)
    return ""


def _run(machine: Machine, data: bytes) -> bytes:
    wanted = structs.decode(StartRun, data)
    known = machine.runs.get(wanted.run)
    if known is not None:
        return _attach(known, wanted)
    flow = machine.program.workflows.get(wanted.workflow)
    if flow is None:
        raise errors.NotFound(f"program {machine.program.name!r} has no workflow {wanted.workflow!r}")
    flow.signature.unpack(wanted.args)
    ids.check_name(wanted.run, "a run's id")
    driver.start(
        machine, run_id=wanted.run, workflow=wanted.workflow, args=wanted.args, seed=wanted.seed, named=wanted.named
    )
    return structs.encode(Standing(wanted.run, RunStatus.RUNNING, attached=False))


def _attach(known: Run, wanted: StartRun) -> bytes:
    record = known.record
    if not runs.is_same(record, wanted.workflow, wanted.args):
        raise errors.IdReused(wanted.run)
    return structs.encode(Standing(record.id, record.status, attached=True, data=record.data))


def _cancel(machine: Machine, data: bytes) -> bytes:
    wanted = structs.decode(CancelRun, data)
    run = machine.runs.get(wanted.run)
    if run is None:
        raise errors.NotFound(f"no run {wanted.run!r}")
    if run.record.status not in ENDED:
        driver.interrupt(machine, run, 0, wanted.reason)
    return structs.encode(Standing(run.record.id, run.record.status, attached=True, data=run.record.data))


def _program(machine: Machine, data: bytes) -> bytes:
    """Go on under this machine's program: block the runs it does not fit, let those go on that it fits again."""
    wanted = structs.decode(ChangeProgram, data)
    for run in machine.live_runs():
        record = run.record
        report = wanted.blocked.get(record.id)
        if report is not None:
            driver.block(machine, run, report)
        elif record.status is RunStatus.BLOCKED:
            record.status, record.blocked = RunStatus.RUNNING, ""
            run.cool()  # brought back, it also looks at what came while it was blocked
            machine.mark_run(run)
            machine.now.ready.append(record.id)
    machine.draft(Kind.PROGRAM_CHANGED, data)
    return values.NONE


def fits(machine: Machine) -> dict[str, str]:
    """The live runs that this machine's program does not fit, and the divergence of each."""
    found: dict[str, str] = {}
    for run in machine.live_runs():
        try:
            driver.rebuild(machine, run)
            _check_arguments(machine, run)
        except failures.Diverged as error:
            found[run.record.id] = runs.storable(error.report)
        except MemoryError as error:
            raise errors.CannotStep("the process has no memory left to try its program", lasting=False) from error
    return found


def _check_arguments(machine: Machine, run: Run) -> None:
    """`Diverged` if an effect that the run waits for takes its arguments no longer: performing it could only fail."""
    asked = [(each.op, each.params) for each in machine.unsent if each.run == run.record.id]
    for number, op in enumerate(run.record.ops):
        pending = machine.open.get((op.step, op.ordinal)) if op.outcome is None else None
        if pending is not None and pending.kind is WorkKind.EFFECT:
            asked.append((number, pending.params))
    for number, params in asked:
        op = run.record.ops[number]
        effect = machine.program.find_effect(op.name) if op.kind is OpKind.EFFECT else None
        if effect is None:
            continue
        try:
            effect.signature.unpack(handling.unpack_effect(params)[0])
        except (errors.DecodeError, errors.BadInput) as error:
            raise failures.Diverged(
                f"run {run.record.id!r} ({run.record.workflow}), operation {number + 1}:\n"
                f"  journal: {handling.describe(op)}\n"
                f"  code:    its arguments do not fit {effect.name}() any more: {error}"
            ) from error


def _schedule(machine: Machine, data: bytes) -> bytes:
    """Answers whether there was anything to do."""
    wanted = structs.decode(schedules.Put, data)
    if wanted.spec is not None:
        schedules.check(machine, wanted.id, wanted.spec)
    return values.dump(schedules.change(machine, wanted.id, wanted.spec))


def _give_up(machine: Machine, data: bytes) -> bytes:
    """Cancel a timer. A run that sleeps is told so by an exception; where the timer was a limit, the limit is gone; the
    timer of a schedule takes the schedule with it.
    """
    wanted = structs.decode(GiveUp, data)
    key = machine.by_intent.get(ids.IntentId(wanted.intent))
    pending = None if key is None else machine.open[key]
    if key is None or pending is None or pending.kind is not WorkKind.TIMER:
        raise errors.NotFound(f"no timer {wanted.intent.hex()} is set")
    if not pending.run and pending.name.startswith(schedules.TIMER):
        schedules.remove(machine, schedules.of_timer(pending.name))
        return values.NONE
    machine.give_up(*key)
    run = machine.runs.get(pending.run)
    if run is None:
        return values.NONE
    if run.record.ops[pending.op].kind is OpKind.TIMER and pending.name in SLEEPS:
        outcome = runs.failed("cancelled", wanted.reason, status=ReceiptStatus.CANCELLED)
        machine.arrive(pending.run, pending.op, outcome)
    else:
        run.touch(b"unlimited", pending.op.to_bytes(4, "big"))
        machine.mark_run(run)
    return values.NONE


def _park(machine: Machine, data: bytes) -> bytes:
    """Note that an effect is parked. Nothing goes on because of it; whoever asks why learns it, and repairs know it."""
    wanted = structs.decode(ParkEffect, data)
    pending = _open_effect(machine, wanted.intent)
    if pending is None or pending.parked is not None:
        return _too_late(machine, PARK, wanted.intent, "nothing waits for it" if pending is None else "it is parked")
    pending.parked = Parked(wanted.attempts, runs.storable(wanted.error))
    return values.NONE


def _retry(machine: Machine, data: bytes) -> bytes:
    """Note that a parked effect is tried again."""
    wanted = structs.decode(RetryEffect, data)
    pending = _open_effect(machine, wanted.intent)
    if pending is None or pending.parked is None:
        return _too_late(machine, RETRY, wanted.intent, "it is not parked")
    pending.parked = None
    return values.NONE


def _open_effect(machine: Machine, intent: bytes) -> Pending | None:
    key = machine.by_intent.get(ids.IntentId(intent))
    pending = None if key is None else machine.open[key]
    return pending if pending is not None and pending.kind is WorkKind.EFFECT else None


def _too_late(machine: Machine, command: str, intent: bytes, why: str) -> bytes:
    machine.draft(Kind.LATE_ANSWER, values.dump([command, intent, why]))
    return values.NONE


def _continue(machine: Machine, data: bytes) -> bytes:  # noqa: ARG001 - every step sends what was held back
    return values.NONE


_COMMANDS: dict[str, Any] = {
    RUN: _run,
    CANCEL: _cancel,
    SCHEDULE: _schedule,
    PROGRAM: _program,
    GIVE_UP: _give_up,
    CONTINUE: _continue,
    PARK: _park,
    RETRY: _retry,
}
