"""A trial: a machine with other code runs a recorded part of a world's history. Nothing leaves it.

The machine begins with the world's rows, and its program is changed first, as when the world adopts it. Then it is
given the recorded inputs, in their order and at their times. Events, messages and commands are given as they are.
Answers are given for what they answer (`recording.py`): the ids of open work differ between the two histories. An
answer that comes before the code has asked waits for that; one that it never asks for is skipped, and counted. What the
code asks for and the journal does not have gets no answer: its run waits.

A timer that both have, with the same due time, fires when the recorded one did, and is released when that was
cancelled. Every other timer fires by itself, when the recorded history has come to its due time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import msgspec

from worldline.base import errors
from worldline.codec import structs
from worldline.features.shadow.pure import input_outcomes, shadow_report, step_requests
from worldline.features.shadow.pure.recording import RecordedStep, Recording, ShadowScript
from worldline.features.shadow.pure.step_requests import Ask
from worldline.kernel import control_commands, event_dispatch, run_repair, state_rows
from worldline.kernel import step as kernel_step
from worldline.kernel.authoring.program import Program
from worldline.kernel.machine import RunFinished
from worldline.kernel.parts import StepParts
from worldline.kernel.personal.vault_interface import Vault
from worldline.model import ids, inbox, payload, row_keys
from worldline.model import step_records as steps
from worldline.model.journal import Kind
from worldline.model.work import WorkKind

STEPS_BETWEEN_MAX = 1_000  # steps of its own that the code makes between two recorded ones

Begin = Callable[[], None]
Place = tuple[int, int]

_CONTINUE = steps.Input(control_commands.CONTINUED, b"")
_NAMING: dict[str, Any] = {  # the commands that name open work by its id
    control_commands.GIVE_UP: control_commands.GiveUp,
    control_commands.PARK: control_commands.ParkEffect,
    control_commands.RETRY: control_commands.RetryEffect,
    run_repair.ANSWER_EFFECT: run_repair.AnswerEffect,
}
_UNFINISHED = (row_keys.LATER, row_keys.HELD, row_keys.CLOSING)


class Endless(errors.Error):
    """The code makes step after step by itself."""

    code = "endless"


class ShadowMachine:
    """What came of it is in the attributes. `place`: the recorded step and height where it is now."""

    def __init__(self, program: Program, recording: Recording, vault: Vault, parts: StepParts) -> None:
        before = recording.before
        self._recording = recording
        self._parts = parts
        self.script = ShadowScript(recording.steps)
        self.machine = state_rows.machine_of(program, before.state, recording.rows_before.items(), recording.at)
        self.machine.keep_in(vault)
        self.machine.begin_replay()
        self.place: Place = (before.step, before.height)
        self._step = before.step
        self._time_us = before.time_us
        self._incarnations = step_requests.Incarnations()
        self._bound: dict[bytes, bytes] = {}  # recorded id -> its counterpart's
        self._over: dict[bytes, None] = {}  # recorded timers that have fired or were cancelled
        self._matched: dict[bytes, None] = {}  # recorded ids that have a counterpart
        self._early: dict[bytes, steps.Input] = {}  # recorded id -> an answer that nothing has asked for yet
        self._answers: list[bytes] = []  # recorded ids whose answers have waited, and can be given now
        self._timers: list[tuple[int, Place, bytes]] = []  # that fire by themselves
        self._timers_before = {
            (each.step, each.ordinal): self.machine.work.wanted_again(each, recording.at)
            for each in self.machine.work.open.values()
            if each.kind is WorkKind.TIMER
        }
        self._between = 0
        self._skipped = 0
        self.pairs: list[tuple[Ask, Ask]] = []  # recorded, and its counterpart
        self.added: list[Ask] = []  # without a counterpart in the journal
        self.started: dict[str, Place] = {}
        self.ended: dict[str, tuple[RunFinished, Place]] = {}
        self.blocked: dict[str, Place] = {}
        self.inputs: list[shadow_report.InputOtherwise] = []

    @property
    def skipped(self) -> int:
        return self._skipped + len(self._early)

    def run(self, begin: Begin) -> None:
        """Run all of it. `begin` is told before each step."""
        begin()
        self._change_program()
        for recorded in self._recording.steps:
            self._between = 0
            self._fire(recorded.context.store_us, begin)
            begin()
            self._take(recorded)
            self._let_go(recorded)
            while self._answers:
                begin()
                self._own(self._early.pop(self._answers.pop(0)))
        self._between = 0
        # Work that the recording itself has left unfinished is not waited for.
        while self.machine.unfinished and not self._was_unfinished():
            begin()
            self._own(_CONTINUE)

    def _was_unfinished(self) -> bool:
        return any(self._recording.rows_after.under(group) for group in _UNFINISHED)

    def _change_program(self) -> None:
        machine = self.machine
        before, after = machine.origin.program_hash, machine.program.hash
        if before != after:
            change = structs.encode(control_commands.ChangeProgram(before, after))
            self._do(
                steps.Input(inbox.Control(control_commands.PROGRAM, payload.inline(change)), change), self._time_us
            )

    # --- Inputs ------------------------------------------------------------------------------------------------

    def _take(self, recorded: RecordedStep) -> None:
        self.place = recorded.place
        # An answer that was refused as forged is given as it is: it must be refused again.
        given = recorded.given if recorded.is_forged else self._translated(recorded.given)
        if given is None:
            return
        context = recorded.context
        # Steps of its own may have gone further already: the time of a world does not go back.
        stepped = self._do(given, max(self._time_us, context.time_us), context.behind_us)
        old, new = input_outcomes.of(recorded.entries), input_outcomes.of(stepped.drafts)
        if old != new:
            said = input_outcomes.input_text(recorded.given)
            self.inputs.append(
                shadow_report.InputOtherwise(said, input_outcomes.text(old), input_outcomes.text(new), *self.place)
            )

    def _translated(self, step_input: steps.Input) -> steps.Input | None:
        """The input as it is in this history; None if it has no place there, or not yet."""
        item = step_input.item
        if isinstance(item, inbox.TimerFired):
            return self._fired(step_input, item)
        if isinstance(item, inbox.EffectReceipt):
            return self._answer(step_input, item.intent)
        if isinstance(item, inbox.Message) and item.name == event_dispatch.REPLY:
            try:
                return self._answer(step_input, bytes.fromhex(item.correlation))
            except ValueError:
                return step_input
        if not isinstance(item, inbox.Control):
            return step_input
        if item.command == control_commands.CONTINUE:
            return step_input if self.machine.unfinished else None
        if item.command in _NAMING:
            return self._command(step_input, _NAMING[item.command])
        return step_input

    def _fired(self, step_input: steps.Input, item: inbox.TimerFired) -> steps.Input | None:
        if item.intent not in self.script.by_intent:  # it was open when the trial began
            return step_input
        self._over[item.intent] = None
        new = self._bound.get(item.intent)
        if new is None:
            # With a counterpart that is due at another time, it fires by itself, and is not skipped.
            self._skipped += item.intent not in self._matched
            return None
        return self._with_intent(step_input, new)

    def _answer(self, step_input: steps.Input, intent: bytes) -> steps.Input | None:
        if intent not in self.script.by_intent:
            return step_input
        new = self._bound.get(intent)
        if new is None:
            # The code has not asked yet: the answer waits until it does.
            self._early[intent] = step_input
            return None
        return self._with_intent(step_input, new)

    def _with_intent(self, step_input: steps.Input, intent: bytes) -> steps.Input:
        item = step_input.item
        if isinstance(item, inbox.Message):
            item = msgspec.structs.replace(item, correlation=intent.hex())
            return msgspec.structs.replace(step_input, item=event_dispatch.as_if_asked(self.machine, item))
        assert isinstance(item, inbox.EffectReceipt | inbox.TimerFired)
        return msgspec.structs.replace(step_input, item=msgspec.structs.replace(item, intent=intent))

    def _command(self, step_input: steps.Input, kind: Any) -> steps.Input | None:
        try:
            command = structs.decode(kind, step_input.data)
        except errors.DecodeError:  # it is refused
            return step_input
        if command.intent not in self.script.by_intent:
            return step_input
        new = self._bound.get(command.intent)
        if new is None:
            self._skipped += 1
            return None
        return msgspec.structs.replace(step_input, data=structs.encode(msgspec.structs.replace(command, intent=new)))

    # --- Steps -------------------------------------------------------------------------------------------------

    def _own(self, step_input: steps.Input) -> None:
        """A step that the recorded history does not have."""
        self._between += 1
        if self._between > STEPS_BETWEEN_MAX:
            raise Endless(
                f"the code makes more than {STEPS_BETWEEN_MAX} steps by itself at height {self.place[1]}: a loop "
                f"around a timer that is always due?"
            )
        if isinstance(step_input.item, inbox.EffectReceipt | inbox.Message):
            old = (
                step_input.item.intent
                if isinstance(step_input.item, inbox.EffectReceipt)
                else bytes.fromhex(step_input.item.correlation)
            )
            step_input = self._with_intent(step_input, self._bound[old])
        self._do(step_input, self._time_us)

    def _do(self, step_input: steps.Input, time_us: int, behind_us: int = 0) -> steps.Stepped:
        self._step += 1
        self._time_us = time_us
        context = steps.StepContext(self._recording.at, self._step, time_us, behind_us)
        self._incarnations.takes(step_input)
        stepped = kernel_step.step(self.machine, step_input, context, self._parts)
        step, height = self.place
        found = step_requests.asks(
            stepped.drafts,
            context,
            self._incarnations,
            step=step,
            heights=[height] * len(stepped.drafts),
            owners=step_requests.owners_of(stepped.changes),
        )
        for ask in found:
            self._asked(ask)
        for each in stepped.drafts:
            if each.kind is Kind.RUN_STARTED:
                self.started[each.correlation] = self.place
            elif each.kind is Kind.RUN_BLOCKED:
                self.blocked[each.correlation] = self.place
            elif each.kind is Kind.RUN_FINISHED:
                self.ended[each.correlation] = (structs.decode(RunFinished, each.payload), self.place)
        return stepped

    def _asked(self, ask: Ask) -> None:
        old = self.script.match(ask)
        if old is None:
            self.added.append(ask)
        else:
            self.pairs.append((old, ask))
            self._matched[old.intent] = None
        if ask.what == step_requests.TIMER:
            if old is not None and old.due_us == ask.due_us and old.intent not in self._over:
                self._bound[old.intent] = ask.intent
            else:
                heapq.heappush(self._timers, (ask.due_us, ask.place, ask.intent))
        elif old is not None and old.intent:
            self._bound[old.intent] = ask.intent
            # Its answer came before the code asked: now it can be given.
            if old.intent in self._early:
                self._answers.append(old.intent)

    # --- Timers that fire by themselves ------------------------------------------------------------------------

    def _fire(self, store_us: int, begin: Begin) -> None:
        while self._timers and self._timers[0][0] <= store_us:
            due_us, _, intent = heapq.heappop(self._timers)
            pending = self.machine.work.find_open(ids.IntentId(intent))
            if pending is not None:
                begin()
                self._time_us = max(self._time_us, due_us)
                self._own(steps.Input(inbox.TimerFired(intent, pending.due_us), b""))

    def _let_go(self, recorded: RecordedStep) -> None:
        """Timers that the recorded step cancelled fire by themselves from here on, if they are open here."""
        for place in recorded.cancelled_timers():
            old = self.script.by_place.get(place)
            if old is None:
                before = self._timers_before.get(place)
                if before is not None:
                    heapq.heappush(self._timers, (before.due_us, place, before.intent))
                continue
            self._over[old.intent] = None
            new = self._bound.pop(old.intent, None)
            if new is not None:
                heapq.heappush(self._timers, (old.due_us, place, new))
