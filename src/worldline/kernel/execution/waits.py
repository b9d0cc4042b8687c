"""Events that runs wait for: the buffer of those that came, and the waits that they satisfy."""

from __future__ import annotations

from worldline.base import errors
from worldline.kernel import failure_data, run_requests, runs, user_errors, user_values
from worldline.kernel.execution import stack, tracebacks
from worldline.kernel.machine import Machine
from worldline.kernel.rows.row_records import Outcome
from worldline.kernel.runs import LiveRun
from worldline.model.inbox import ReceiptStatus
from worldline.model.traces import TraceSource


def check_all(machine: Machine, run: LiveRun) -> None:
    """Events may have come for the waits of a run: now, or while the run was blocked."""
    for number in list(run.wheres):
        if run.record.ops[number].outcome is None:
            check(machine, run, number)


def check(machine: Machine, run: LiveRun, number: int) -> None:
    """Answer a wait with the first buffered event that fits it."""
    # Repeated code gets the outcome that its record has.
    if run.rebuilding:
        return
    schema = run.record.ops[number].name
    for index, buffered in enumerate(run.record.buffer):
        if buffered.schema != schema:
            continue
        outcome = _try(machine, run, number, buffered.data)
        if outcome is not None:
            # A condition that raised fails the wait alone: the event stays, and may be for another.
            if outcome.status is ReceiptStatus.OK:
                run.take_buffered(index)
            run_requests.arrive(machine, run.record.id, number, outcome)
            return


def _try(machine: Machine, run: LiveRun, number: int, data: bytes) -> Outcome | None:
    """An event as the outcome of a wait, if it fits. A condition that raises fails the wait. One that was kept under
    earlier code and is not of the type that the wait has now stays where it is: it may be for another wait.
    """
    kind, where = run.wheres[number]
    if where is not None:
        try:
            event = user_values.load(kind, data)
        except errors.DecodeError:
            return None
        try:
            if not stack.call(where, event):
                return None
        except BaseException as error:  # it is the user's code
            if user_errors.let_pass(error):
                raise
            message = user_errors.message_in_step(error)
            failed = runs.failed(
                user_errors.code_of(error), f"where= raised {message}", data=failure_data.data_of(error)
            )
            trace = tracebacks.record(machine, TraceSource.WHERE, run.record.id, error, message)
            if trace:
                run.traces.keep(number, failed.data, trace)
            return failed
    return Outcome(ReceiptStatus.OK, data)
