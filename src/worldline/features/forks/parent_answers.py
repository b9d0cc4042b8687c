"""The answer of one world to work that another shares with it: what a step of its journal says.

The first of these decides: the answer, the answer that a person gave, that the world has given the work up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from worldline.codec import structs
from worldline.kernel import event_dispatch, replay, run_repair, runs, user_values
from worldline.model import inbox, journal, payload
from worldline.model.inbox import MessageMode, ReceiptStatus
from worldline.model.journal import Kind

Said = list[Any]  # a status and data, as the effect `SHARE` answers

_GIVEN_UP = (Kind.EFFECT_CANCELLED, Kind.QUESTION_CANCELLED)


class SharedWork(msgspec.Struct, frozen=True):
    """What is shared, as the journal of the world that asked for it knows it: `given_up` is what that says if the world
    gives it up, `by_hand` the run and the number of the operation. The answer is above a height.
    """

    world: bytes
    intent: bytes
    above: int
    given_up: list[Any]
    by_hand: list[Any]


def needed(step: Sequence[journal.JournalEntry], shared: SharedWork) -> payload.Payload | None:
    """What has to be loaded to know what a step says of the work. None: nothing about it."""
    # The first entry of a step is its input.
    first = step[0]
    if first.kind is Kind.EFFECT_RESULT or first.kind is Kind.MESSAGE:
        item = replay.item_of(first)
        if isinstance(item, inbox.EffectReceipt) and item.intent == shared.intent:
            return item.payload
        # One that came from another world than the one that was asked, or too late, is no answer.
        is_late = any(each.kind is Kind.LATE_ANSWER for each in step)
        if isinstance(item, inbox.Message) and _is_reply(item, shared.intent) and not is_late:
            return item.payload
    if any(each.kind in _GIVEN_UP and user_values.load(list[Any], each.payload) == shared.given_up for each in step):
        control = replay.item_of(first) if first.kind is Kind.CONTROL else None
        return control.payload if isinstance(control, inbox.Control) else payload.EMPTY
    return None


def said(step: Sequence[journal.JournalEntry], data: bytes, shared: SharedWork) -> Said:
    """What a step says of the work, given what was `needed`."""
    item = replay.item_of(step[0])
    if isinstance(item, inbox.EffectReceipt) and item.intent == shared.intent:
        return [int(item.status), data]
    if isinstance(item, inbox.Message) and _is_reply(item, shared.intent):
        answer = structs.decode(event_dispatch.Answer, data)
        return [int(ReceiptStatus.OK if answer.ok else ReceiptStatus.ERROR), answer.data]
    by_hand = _by_hand(item, data, shared) if isinstance(item, inbox.Control) else None
    return by_hand or cancelled("the world that it was shared with has given it up")


def cancelled(why: str) -> Said:
    return [int(ReceiptStatus.CANCELLED), runs.failure("cancelled", why)]


def _is_reply(item: inbox.Message, intent: bytes) -> bool:
    return item.mode is MessageMode.TYPED and item.name == event_dispatch.REPLY and item.correlation == intent.hex()


def _by_hand(control: inbox.Control, data: bytes, shared: SharedWork) -> Said | None:
    """What a person has answered, if that is why the world does not wait any more."""
    answer: run_repair.AnswerEffect | run_repair.AnswerRun
    if control.command == run_repair.ANSWER_EFFECT:
        answer = structs.decode(run_repair.AnswerEffect, data)
        is_it = answer.intent == shared.intent
    elif control.command == run_repair.ANSWER:
        answer = structs.decode(run_repair.AnswerRun, data)
        is_it = [answer.run, answer.op] == shared.by_hand
    else:
        return None
    if not is_it:
        return None
    if answer.error is not None:
        return [int(ReceiptStatus.ERROR), runs.failure("answered", answer.error)]
    return [int(ReceiptStatus.OK), answer.data]
