"""What a step asked for, read from its entries, or from drafts of them: effects, timers and messages.

What is asked for is told by what it is, and not by its id: an id is made of the step, and two versions of a program
need not ask in the same step. A run that continues as new, or is reset, counts its operations from the start again; so
its incarnation, counted from where a trial begins, is part of what an operation is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

from worldline.base import errors
from worldline.codec import structs
from worldline.features.shadow.pure import shadow_report
from worldline.kernel import event_dispatch, run_repair, run_requests, user_values
from worldline.kernel.authoring.calls import Options
from worldline.kernel.execution import divergence_report
from worldline.kernel.machine import SCHEDULE_TIMER
from worldline.kernel.rows.row_records import Op
from worldline.kernel.run_operations import OpKind
from worldline.model import ids, inbox, row_keys
from worldline.model import step_records as steps
from worldline.model.change import Change
from worldline.model.journal import Kind

EFFECT, TIMER, MESSAGE = "effect", "timer", "message"

_MESSAGES = (OpKind.SEND, OpKind.ASK)

Identity = tuple[str, str, int, str, bytes]
Owners = Mapping[int, tuple[str, int]]  # of messages, by their ordinals: a run and its operation


class Said(Protocol):
    """An entry, or the draft of one."""

    @property
    def kind(self) -> Kind: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def correlation(self) -> str: ...


class Ask(msgspec.Struct, frozen=True):
    what: str
    run: str  # empty: no run's
    incarnation: int
    op: int
    name: str  # of an effect or timer; of a message its schema
    params: bytes
    to: str  # of a message
    due_us: int  # of a timer
    delay_us: int
    intent: bytes  # empty: it gets no answer
    place: tuple[int, int]  # step and ordinal in its own history
    step: int  # recorded step and height
    height: int

    @property
    def identity(self) -> Identity:
        """What two versions of a program must have in common to ask for the same."""
        if self.what == EFFECT:
            # Without its options: other options are a difference of the same effect, and not another effect.
            return self.what, self.run, self.incarnation, self.name, run_requests.unpack_effect(self.params)[0]
        if self.what == MESSAGE:
            # The receiver sees no run, so it is no part of what a message is.
            return self.what, self.to, 0, self.name, self.params
        return self.what, self.run, self.incarnation, self.name, self.params

    @property
    def group(self) -> tuple[str, str]:
        """Among which others the counterpart of this one is, if what is asked for differs."""
        if self.run:
            return self.run, ""
        return "", self.to or self.name

    @property
    def is_scheduled(self) -> bool:
        return not self.run and self.name.startswith(SCHEDULE_TIMER)

    def same_as(self, other: Ask) -> bool:
        """Whether one of the same identity is also asked for under the same conditions."""
        if self.what == EFFECT:
            return self.params == other.params
        if self.what == TIMER and not self.run:  # how long it runs is not in its parameters
            return self.due_us == other.due_us if self.is_scheduled else self.delay_us == other.delay_us
        return True

    def shown(self) -> shadow_report.RequestDiff:
        return shadow_report.RequestDiff(self.what, self.name, *self._arguments(), self.op + 1, self.step, self.height)

    def _arguments(self) -> tuple[Any, str]:
        if self.what == EFFECT:
            arguments, options = run_requests.unpack_effect(self.params)
            said = divergence_report.describe(Op(OpKind.EFFECT, self.name, self.params))
            return shadow_report.value_of(arguments), f"{said}{_options(options)}"
        if self.what == MESSAGE:
            return self._message()
        seconds = self.delay_us / 1_000_000
        if self.run:
            return seconds, divergence_report.describe(Op(OpKind.TIMER, self.name, self.params))
        said = self.name if self.is_scheduled else f"{self.name}{divergence_report.value_text(self.params)}"
        return shadow_report.value_of(self.params), f"timer {said} after {seconds:g} s"

    def _message(self) -> tuple[Any, str]:
        data, said = self.params, f"message {self.name}"
        if self.name == event_dispatch.REPLY:
            answer = structs.decode(event_dispatch.Answer, data)
            data, said = answer.data, "answer " if answer.ok else "refusal "
        return shadow_report.value_of(data), f"{said}{divergence_report.value_text(data)} to {self.to}"


class Incarnations:
    """How often each run has begun, since where a trial begins."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def of(self, run: str) -> int:
        return self._counts.get(run, 0)

    def begins(self, run: str) -> None:
        self._counts[run] = self.of(run) + 1

    def takes(self, step_input: steps.Input) -> None:
        """An input that lets a run begin again is one, whatever comes of it."""
        item = step_input.item
        if isinstance(item, inbox.Control) and item.command == run_repair.RESET:
            with contextlib.suppress(errors.DecodeError):  # then it is refused
                self.begins(structs.decode(run_repair.ResetRun, step_input.data).run)


def asks(
    said: Iterable[Said],
    context: steps.StepContext,
    incarnations: Incarnations,
    *,
    step: int,
    heights: Iterable[int],
    owners: Owners,
) -> list[Ask]:
    """What a step asked for. `step` and `heights`: the recorded step, and the height of each entry."""
    found: list[Ask] = []
    for each, height in zip(said, heights, strict=True):
        if each.kind is Kind.RUN_STARTED:
            incarnations.begins(_list(each.payload)[0])
        elif each.kind in (Kind.EFFECT_REQUESTED, Kind.TIMER_SET):
            ordinal, name, run, op, params, delay_us = _list(each.payload)
            intent = ids.intent_id(context.address, step=context.step, ordinal=ordinal, kind=name, params=params)
            found.append(
                Ask(
                    EFFECT if each.kind is Kind.EFFECT_REQUESTED else TIMER,
                    run,
                    incarnations.of(run),
                    op if run else -1,
                    name,
                    params,
                    "",
                    context.store_us + delay_us,
                    delay_us,
                    intent,
                    (context.step, ordinal),
                    step,
                    height,
                )
            )
        elif each.kind is Kind.MESSAGE_SENT:
            ordinal, to, schema, data = _list(each.payload)
            run, op = owners.get(ordinal, ("", -1))
            reply = f"the world {to.hex()} that asked ({each.correlation})" if isinstance(to, bytes) else ""
            answered_as = b"" if reply else bytes.fromhex(each.correlation)
            found.append(
                Ask(
                    MESSAGE,
                    run,
                    incarnations.of(run),
                    op,
                    schema,
                    data,
                    reply or to,
                    0,
                    0,
                    answered_as,
                    (context.step, ordinal),
                    step,
                    height,
                )
            )
    return found


def owners_of(changes: Iterable[Change]) -> dict[int, tuple[str, int]]:
    """Whose messages a step has sent: an operation's row says under which ordinal it was asked for."""
    found: dict[int, tuple[str, int]] = {}
    for each in changes:
        if each.row is None or not each.key.startswith(row_keys.PROGRESS):
            continue
        key = row_keys.parse(each.key)
        if key.part == row_keys.OP and _list(each.row.meaning)[0] in _MESSAGES:
            _, *asked_at = _list(each.row.placement)
            if asked_at:
                found[asked_at[1]] = (key.texts[0], key.number)
    return found


def _list(data: bytes) -> list[Any]:
    found: list[Any] = user_values.load(list[Any], data)
    return found


def _options(options: Options) -> str:
    said = [f"{name}={value!r}" for name, value in msgspec.structs.asdict(options).items() if value is not None]
    return f" with {', '.join(said)}" if said else ""
