"""Recorded steps as a script: what was given to a world, and what it asked for then.

An answer belongs to what was asked for. Other code that asks for the same gets the recorded answer: of those that are
the same, the first asked for by one has its counterpart in the first asked for by the other, and so on. So code that
does something more or less in between still finds the answers to the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from worldline.features.shadow.pure import step_requests
from worldline.features.shadow.pure.step_requests import Ask, Identity
from worldline.kernel import event_dispatch, replay, user_values
from worldline.model import ids, journal
from worldline.model import step_records as steps
from worldline.model.change import Change
from worldline.model.journal import Kind
from worldline.model.rows import Rows


class RecordedStep(msgspec.Struct, frozen=True):
    """One recorded step: its input, when it was, its entries, whose messages it sent."""

    given: steps.Input
    context: steps.StepContext
    entries: list[journal.JournalEntry]
    owners: step_requests.Owners = {}

    @property
    def place(self) -> tuple[int, int]:
        """Step and height of its input."""
        return self.entries[0].step, self.entries[0].height

    @property
    def is_forged(self) -> bool:
        """Whether its input was an answer from another world than the one that was asked."""
        late = (user_values.load(list[Any], each.payload) for each in self.entries if each.kind is Kind.LATE_ANSWER)
        return any(each[-1] == event_dispatch.NOT_ASKED for each in late)

    def cancelled_timers(self) -> list[tuple[int, int]]:
        """The timers that it gave up, each by the step and ordinal that asked for it."""
        found = [each.payload for each in self.entries if each.kind is Kind.TIMER_CANCELLED]
        return [
            (step, ordinal) for step, ordinal, _ in (user_values.load(tuple[int, int, str], each) for each in found)
        ]


def step_of(
    entries: Sequence[journal.JournalEntry], at: ids.Address, load: replay.Load, changes: Iterable[Change] = ()
) -> RecordedStep:
    """A step of these entries, whose payloads are in place, and changes."""
    given = replay.input_of(entries, load)
    return RecordedStep(given, replay.context_of(entries, at), list(entries), step_requests.owners_of(changes))


class Recording(msgspec.Struct, frozen=True):
    """A part of a world's life: its rows and head before and after, and the steps between."""

    at: ids.Address
    before: journal.Head
    rows_before: Rows
    steps: list[RecordedStep]
    after: journal.Head
    rows_after: Rows


class ShadowScript:
    """What the steps asked for, with the counterparts that other code's asks have found there."""

    def __init__(self, recorded: Sequence[RecordedStep]) -> None:
        self.by_intent: dict[bytes, Ask] = {}
        self.by_place: dict[tuple[int, int], Ask] = {}
        self._left: dict[Identity, deque[Ask]] = {}
        incarnations = step_requests.Incarnations()
        for each in recorded:
            # Before its entries: what a run asks for in this step belongs to the incarnation that the input began.
            incarnations.takes(each.given)
            heights = [entry.height for entry in each.entries]
            found = step_requests.asks(
                each.entries, each.context, incarnations, step=each.context.step, heights=heights, owners=each.owners
            )
            for ask in found:
                self._left.setdefault(ask.identity, deque()).append(ask)
                if ask.intent:
                    self.by_intent[ask.intent] = self.by_place[ask.place] = ask

    def match(self, ask: Ask) -> Ask | None:
        """The recorded counterpart of what other code asks for: it has no other from here on."""
        left = self._left.get(ask.identity)
        if not left:
            return None
        # Equal messages of two runs are one identity: one of the same run comes first, if that is known.
        mine = (each for each in left if (each.run, each.incarnation) == (ask.run, ask.incarnation))
        found = next(mine, left[0])
        left.remove(found)
        return found

    def left(self) -> list[Ask]:
        """What was asked for and has no counterpart, in the order of the journal."""
        return sorted((each for left in self._left.values() for each in left), key=lambda each: each.height)
