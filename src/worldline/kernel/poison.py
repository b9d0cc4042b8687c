"""Resolving an input without running user code, because processes die of the code that would handle it.

Nothing is lost by it. What only code can take is set aside as a dead letter: an event, a message, an event that a timer
or a schedule raises. What has a record is recorded, and the runs that would resume are blocked with the reason: the
outcome of an operation, the start of a run, a cancellation. The reason is journaled right after the input, so a replay
does the same.

If even that raises, an input becomes a dead letter by the step for bytes that cannot be decoded, which touches nothing.
What earlier steps left is no input, and would be in the way of all others: one thing of it is dropped (`discard`).
"""

from __future__ import annotations

from worldline.base import errors
from worldline.codec import structs
from worldline.kernel import event_dispatch, run_requests, runs, user_values
from worldline.kernel.execution import coroutines
from worldline.kernel.machine import Machine
from worldline.kernel.rows.row_records import RunStatus
from worldline.model import inbox
from worldline.model.inbox import MessageMode
from worldline.model.journal import Kind

CODE = "poison"


def draft(machine: Machine, why: str, *, discard: bool = False) -> None:
    """Journal why this step runs no user code."""
    said = runs.storable(why)
    # That it is a list says that something is discarded.
    machine.draft(Kind.POISON, user_values.dump([said] if discard else said))


def read(data: bytes) -> tuple[str, bool]:
    """Say why a step ran no user code, and whether it dropped what earlier ones had left."""
    said = user_values.load(str | list[str], data)
    return (said, False) if isinstance(said, str) else (said[0], True)


def answer(machine: Machine, why: str, correlation: str) -> None:
    """Tell the caller of an input whose step cannot be made."""
    failed = event_dispatch.Answer(False, runs.failure(errors.StepFailed.code, why))
    machine.draft(Kind.ANSWERED, structs.encode(failed), correlation=correlation)


def can_go_on(machine: Machine) -> bool:
    """Return whether `go_on` would find something to do: the rest is as it was before."""
    return bool(machine.later or machine.work.unsent)


def discard(machine: Machine) -> None:
    """Drop the first thing that earlier steps left for this one, and do nothing with it: doing it raises, and so does
    every way around it. A run that is dropped so continues when something else happens to it.
    """
    # In the order in which a step takes them up.
    for queue in (machine.later, machine.work.unsent, machine.work.closing):
        if queue.items:
            queue.popleft()
            return
    if machine.branch is not None:
        machine.branch.settled()


def reject(machine: Machine, why: str, *, correlation: str = "") -> str:
    """An input that only code can take. Its caller, if one waits, is answered. Returns why it is a dead letter."""
    machine.draft(Kind.UNDECODABLE_INPUT, user_values.dump([runs.storable(why)]))
    if correlation:
        machine.draft(Kind.ANSWERED, structs.encode(_answer(why)), correlation=correlation)
    return why


def message(machine: Machine, item: inbox.Message, why: str) -> str:
    """A message from another world that is no reply. A question is answered."""
    machine.draft(Kind.UNDECODABLE_INPUT, user_values.dump([runs.storable(why)]))
    if item.reply:
        event_dispatch.send_reply(machine, item, _answer(why))
    return why


def is_reply(item: inbox.Message) -> bool:
    return item.mode is MessageMode.TYPED and item.name == event_dispatch.REPLY


def block(machine: Machine, why: str) -> None:
    """Block the runs whose code would continue now."""
    ready = machine.now.ready
    for run_id in dict.fromkeys(ready):
        run = machine.runs.get(run_id)
        if run is not None and run.record.status is RunStatus.RUNNING:
            # Not closed: its `finally` blocks are user code, too.
            run.abandon()
            coroutines.block(machine, run, f"run {run_id!r} was not continued: {why}")
    ready.clear()


def go_on(machine: Machine, why: str) -> None:
    """What earlier steps left for this one. The first of the runs that wait is blocked, and the others stay in line; if
    there are none, those that were held back are started, and continue in the next step.
    """
    if machine.later:
        machine.now.ready.append(machine.later.popleft().id)
        block(machine, why)
        return
    run_requests.send_held_back(machine)
    machine.continue_later()


def _answer(why: str) -> event_dispatch.Answer:
    return event_dispatch.Answer(False, runs.failure(CODE, why))
