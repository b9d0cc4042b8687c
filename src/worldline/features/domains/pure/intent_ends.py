"""Tells the end of an intent to what waits for it: a client by its correlation, a world that has asked, a run of this
world.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from worldline.base import limits
from worldline.codec import canonical, structs
from worldline.features.domains.pure.domain_cell import IntentWaiter
from worldline.flow_core.authoring.action_calls import IntentAnswer
from worldline.kernel import event_dispatch, run_requests
from worldline.kernel.event_dispatch import Answer
from worldline.kernel.machine import Machine
from worldline.kernel.rows.row_records import Outcome
from worldline.model.inbox import ReceiptStatus
from worldline.model.journal import Kind


class EndAnswers(msgspec.Struct, frozen=True):
    """`brief`: without the state, for clients, which can read it; None: the same as for others."""

    whole: Answer
    brief: Answer | None = None


def _said(status: str, error: dict[str, Any] | None) -> bytes:
    """The bytes of an `IntentAnswer`, all but its state."""
    return canonical.join_list([canonical.encode(status), canonical.encode(error, around=1), b""])


_COMPLETE: Final = _said("complete", None)


def end_of(status: str, error: dict[str, Any] | None, state: bytes) -> EndAnswers:
    """The end of an intent, with the state: the bytes of a snapshot. As an `IntentAnswer`."""
    said = _COMPLETE if error is None and status == "complete" else _said(status, error)
    whole = said + state
    # A client can read a larger state by itself; worlds and runs get it whole.
    if len(whole) <= limits.FLOW_STATE_BYTES_MAX:
        return EndAnswers(Answer(True, whole))
    return EndAnswers(Answer(True, whole), Answer(True, structs.encode(IntentAnswer(status, error))))


def tell(machine: Machine, owed: IntentWaiter, end: EndAnswers) -> None:
    """Give the end of an intent to one that waits for it."""
    if owed.correlation:
        machine.draft(Kind.ANSWERED, structs.encode(end.brief or end.whole), correlation=owed.correlation)
    elif owed.message:
        event_dispatch.send_reply(machine, owed.question(), end.whole)
    elif owed.run:
        status = ReceiptStatus.OK if end.whole.ok else ReceiptStatus.ERROR
        machine.now.count_bytes(len(end.whole.data))
        run_requests.arrive(machine, owed.run, owed.op, Outcome(status, end.whole.data))
