"""The commands that help a run or an effect that makes no progress, as a person types them; and a run's operations.

Which of them apply is read from the run's record alone: no user code runs, except for `differences`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from worldline.base import errors, failures
from worldline.codec import structs
from worldline.kernel.execution import coroutines, divergence_report
from worldline.kernel.machine import Machine
from worldline.kernel.rows.row_records import ENDED, JournaledFailure, Op, Record, RunStatus
from worldline.kernel.run_operations import OpKind
from worldline.model.inbox import ReceiptStatus

SHOWN_MAX = 50
ANSWERS_SHOWN_MAX = 5

_OPERATION = re.compile(r", operation (\d+):")
_ANSWERED = (OpKind.EFFECT, OpKind.TIMER, OpKind.WAIT, OpKind.CHILD, OpKind.START, OpKind.SEND, OpKind.ASK)

Command = Callable[[str], str]


class Operation(msgspec.Struct, frozen=True):
    """One operation of a run, for people."""

    number: int
    what: str
    state: str  # "open", "ok", or the failure
    differs: str = ""  # what the code passes now, if that is something else


def of_run(command: Command, world: str, record: Record) -> list[str]:
    """Every way out that applies to a run, the mildest first."""
    about = f"{world} {record.id}"
    if record.status in ENDED:
        failed = record.status is not RunStatus.FINISHED
        return [command(f"runs reset {about} --to start")] if failed else []
    found = [command(f"runs retry {about}")] if record.status is RunStatus.BLOCKED else []
    to = _OPERATION.search(record.blocked)
    open_ops = [number for number, op in enumerate(record.ops, 1) if op.outcome is None and op.kind in _ANSWERED]
    # It has an answer that the edited type refuses: another answer to the same operation is the mildest way out.
    if to and divergence_report.UNFIT in record.blocked:
        open_ops.insert(0, int(to.group(1)))
    found += [command(f"runs answer {about} {number} VALUE") for number in open_ops[:ANSWERS_SHOWN_MAX]]
    found.append(command(f"runs reset {about} --to {to.group(1) if to else 'start'}"))
    if record.status is not RunStatus.BLOCKED:  # a blocked run is cancelled only when it resumes, which it does not
        found.append(command(f"runs cancel {about}"))
    found.append(command(f"runs terminate {about}"))
    return found


def of_effect(command: Command, short: str, *, parked: bool) -> list[str]:
    """The ways out for an open effect."""
    if parked:
        return [command(f"effect retry {short}"), command(f"effect answer {short} VALUE")]
    return [command(f"effect retry {short}"), command(f"effect park {short}")]


def pending_cancel(record: Record) -> str:
    """That a cancellation waits, and for what; empty if none does."""
    waiting = [each.reason for each in record.interrupts if each.scope == 0]
    if not waiting or record.status in ENDED:
        return ""
    why = "the run is blocked" if record.status is RunStatus.BLOCKED else "a shield is in the way"
    return f"a cancellation waits ({waiting[0] or 'no reason given'}): {why}"


def operations(record: Record, differing: dict[int, str] | None = None) -> list[Operation]:
    """The last operations of a run, in order."""
    first = max(0, len(record.ops) - SHOWN_MAX)  # the last ones: where the run stands is at the end
    return [
        Operation(number + 1, divergence_report.describe(op), _state(op), (differing or {}).get(number, ""))
        for number, op in enumerate(record.ops[first:], first)
    ]


def differences(machine: Machine, run_id: str) -> dict[int, str]:
    """The operations that the code asks for with other arguments now, by number from 0. This runs the workflow's code,
    and nothing that it asks for happens. A run that the code does not fit has a report instead.
    """
    run = machine.runs.get(run_id)
    if run is None or run.record.status is not RunStatus.RUNNING:
        return {}
    try:
        coroutines.rebuild(machine, run)
        differing = [(number, params, run.record.ops[number]) for number, params in run.differing.items()]
        return {
            number: divergence_report.arguments(Op(op.kind, op.name, params)) or "nothing"
            for number, params, op in differing
        }
    except failures.Diverged:
        return {}
    finally:
        run.cool()  # the coroutine has run ahead of the record, and must not be used by anything else


def _state(op: Op) -> str:
    if op.outcome is None:
        return "open"
    if op.outcome.status is ReceiptStatus.OK:
        return "ok"
    try:
        why = structs.decode(JournaledFailure, op.outcome.data)
    except errors.DecodeError:
        return op.outcome.status.name.lower()
    return f"{op.outcome.status.name.lower()}: {why.message}"
