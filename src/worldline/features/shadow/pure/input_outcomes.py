"""What came of an input at once: taken, refused, failed or answered, read from a step's entries or drafts."""

from __future__ import annotations

from collections.abc import Sequence

from worldline.base import errors
from worldline.codec import structs
from worldline.features.shadow.pure.step_requests import Said
from worldline.kernel import event_dispatch, user_values
from worldline.kernel.execution import divergence_report
from worldline.kernel.rows.row_records import JournaledFailure
from worldline.model import inbox
from worldline.model import step_records as steps
from worldline.model.journal import Kind

_KINDS = (Kind.HANDLER_FAILED, Kind.UNDECODABLE_INPUT, Kind.ANSWERED)

Outcome = tuple[Kind, bytes]


def of(said: Sequence[Said]) -> list[Outcome]:
    """What a step says of its input. Its first entry is the input itself."""
    return [(each.kind, each.payload) for each in said[1:] if each.kind in _KINDS]


def text(outcomes: Sequence[Outcome]) -> str:
    return "; ".join(_text(*each) for each in outcomes) or "is taken"


def _text(kind: Kind, data: bytes) -> str:
    try:
        if kind is Kind.HANDLER_FAILED:
            return f"fails: {_failure(data)}"
        if kind is Kind.UNDECODABLE_INPUT:
            return f"is refused: {user_values.load(list[str], data)[0]}"
        answer = structs.decode(event_dispatch.Answer, data)
        return (
            f"is answered {divergence_report.value_text(answer.data)}"
            if answer.ok
            else f"is refused: {_failure(answer.data)}"
        )
    # A report must not fail because of one outcome that is written otherwise.
    except errors.DecodeError:
        return f"{kind.name.lower()} {data.hex()[:40]}"


def _failure(data: bytes) -> str:
    found = structs.decode(JournaledFailure, data)
    return f"{found.message} ({found.code})"


def input_text(step_input: steps.Input) -> str:
    item = step_input.item
    if isinstance(item, inbox.InboxEvent):
        return f"event {item.schema}{divergence_report.value_text(step_input.data)}"
    if isinstance(item, inbox.Message):
        return f"message {item.name}{divergence_report.value_text(step_input.data)}"
    if isinstance(item, inbox.Control):
        return f"command {item.command}"
    return (
        "an answer"
        if isinstance(item, inbox.EffectReceipt)
        else "a timer"
        if item is not None
        else "an unreadable input"
    )
