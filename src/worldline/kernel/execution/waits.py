"""Events that runs wait for: the buffer of those that came, and the waits that they satisfy."""

from __future__ import annotations

from typing import Any

from worldline.kernel import failure, runs, user_errors, values, work
from worldline.kernel.execution import stack
from worldline.kernel.runs import Run
from worldline.kernel.state import Machine
from worldline.model.inbox import ReceiptStatus


def check_all(machine: Machine, run: Run) -> None:
    """Events may have come for the waits of a run: now, or while the run was blocked."""
    for number in list(run.wheres):
        if run.record.ops[number].outcome is None:
            check(machine, run, number)


def check(machine: Machine, run: Run, number: int) -> None:
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
                run.take_buffered(index)
            work.arrive(machine, run.record.id, number, outcome)
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
