"""What the rules of a universe refuse of what a step asks for.

It is asked for all the same, as far as the world's journal is concerned, and answered at once: with an error receipt in
the world's own inbox, by the commit of the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from worldline.base import failures
from worldline.features.policy import batches
from worldline.kernel import part_inputs, run_requests, runs
from worldline.kernel.authoring import message_calls
from worldline.model import ids, inbox, payload, step_records
from worldline.model.inbox import MessageMode, ReceiptStatus
from worldline.model.policy import Bounds
from worldline.model.work import WorkKind
from worldline.runtime.world_bounds import StepRules, WorldBounds
from worldline.store import kv

_OWN = (message_calls.REPLY, part_inputs.SHARE)  # what the runtime performs for itself


class PolicyStepRules(StepRules):
    """The rules of a universe, as the workers that run its worlds ask them."""

    def reads(self, at: ids.Address) -> Sequence[kv.Request]:
        return batches.reads(at)

    def bounds(self, at: ids.Address, read: kv.ReadResult, *, program: str) -> PolicyBounds | None:
        records = batches.PolicyRecords(at, read.value(0), read.value(1), read.page(2))
        found = batches.bounds(records, program=program)
        return None if found is None else PolicyBounds(found)


class PolicyBounds(WorldBounds):
    """What the rules let one world do."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds

    def why_no_message(self, message: inbox.Message, *, to: str) -> str | None:
        return self._bounds.why_no_message(to=to, name=_label_of(message), near=True)

    def refused(self, requests: Iterable[step_records.WorkRequest]) -> dict[ids.IntentId, inbox.EffectReceipt]:
        """Name the effects that the world may not use, with their answers. One that is parked from the beginning leaves
        a dry fork only by a person's hand.
        """
        found: dict[ids.IntentId, inbox.EffectReceipt] = {}
        for each in requests:
            if each.kind is not WorkKind.EFFECT or each.parked or each.name in _OWN:
                continue
            code, why = _why_not(self._bounds, each)
            if why is not None:
                found[each.intent] = _refusal(each, code, why)
        return found


def _refusal(request: step_records.WorkRequest, code: str, why: str) -> inbox.EffectReceipt:
    failure = runs.failure(code, runs.storable(f"{why}; `worldline policy list` shows the rules"))
    refusal = inbox.EffectReceipt(request.intent, ReceiptStatus.ERROR, payload.inline(failure), 0, request.correlation)
    if not request.correlation_id:
        return refusal
    return inbox.CorrelatedReceipt(**msgspec.structs.asdict(refusal), correlation_id=request.correlation_id)


def _label_of(message: inbox.Message) -> str:
    """What a message is, as rules name it."""
    return f"inbox:{message.name}" if message.mode is MessageMode.INBOX else message.name


def _why_not(bounds: Bounds, request: step_records.WorkRequest) -> tuple[str, str | None]:
    """Why it may not, with a code. A message to another universe is an effect, and has the rules of messages."""
    if request.name != message_calls.SEND:
        return failures.PolicyDenied.code, bounds.why_no_effect(request.name)
    # Without a rule about sending, what is sent need not be decoded.
    if not bounds.sends:
        return message_calls.NOT_ALLOWED, None
    arguments = run_requests.effect_arguments(request.params)
    label = message_calls.unpack(arguments["content"]).label
    return message_calls.NOT_ALLOWED, bounds.why_no_message(to=arguments["to"], name=label, near=False)
