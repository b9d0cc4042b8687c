"""The effects that one side has asked for, or got an answer to, since the common ancestor.

They are read from the journal, because the rows of a run go with its end. An effect that was asked for before the
ancestor comes into sight when its rows change (`open_effect_rows.py`). Answers find their effects by the intent, which
is made from the world, the step and what was asked; cancellations by step and ordinal.

A receipt that comes too late changes nothing: its step says so (`late_answer`).

A fork disowns the effects that it has inherited: they are not open any more, and what comes behind that belongs to the
same effect. It is answered by the fork itself (`scripted`), asked for again, or shared: then another effect looks for
the answer in the parent's journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from worldline.base import errors, limits
from worldline.codec import canonical, digest, structs
from worldline.features.diff.open_effect_rows import Get, OpenEffectRow, Place, asked, touched
from worldline.features.diff.records import EffectSide
from worldline.kernel import part_inputs, replay, run_repair, run_requests, user_values
from worldline.kernel.rows.row_records import JournaledFailure, Outcome
from worldline.kernel.run_operations import OpKind
from worldline.layers.history.row_overlay import Overlay
from worldline.model import ids, inbox, journal
from worldline.model.change import Change
from worldline.model.inbox import ReceiptStatus
from worldline.model.journal import Kind

# Whose payloads are read.
READ: Final = (Kind.EFFECT_REQUESTED, Kind.EFFECT_RESULT, Kind.EFFECT_CANCELLED, Kind.SCRIPTED, Kind.CONTROL)
OPEN: Final = "open"
PARKED: Final = "parked"
_CANCELLED: Final = "cancelled"

_REQUESTED = tuple[int, str, str, int, bytes, int]
_SCRIPTED = tuple[str, int, int, str, bytes, int, bytes]
Key = tuple[int, int]  # the step that asked for it, and the ordinal there


class SeenEffect:
    """One effect, as far as the side has got with it."""

    __slots__ = ("answer", "args", "disowned", "key", "name", "place", "shared", "status", "was_open")

    def __init__(self, place: Place, name: str, params: bytes, *, was_open: bool = False) -> None:
        self.place = place
        self.name = name
        self.args = arguments(params)
        self.was_open = was_open  # at the ancestor
        self.status = OPEN
        self.answer: Any = None
        self.disowned = False  # it is not open any more, and nothing has been said about it
        self.shared = False
        self.key: Key | None = None

    def disown(self) -> None:
        self.disowned = True

    def ask(self, key: Key, *, shared: bool) -> None:
        """It is asked for by this step, or the answer that a fork's parent gets is."""
        self.key, self.shared, self.disowned = key, shared, False

    def end(self, status: str, answer: Any = None) -> None:
        """The first answer counts."""
        if self.status == OPEN:
            self.status, self.answer = status, answer

    def side(self, get: Get) -> EffectSide:
        """As it is in the end, by these rows."""
        status = self.status
        if status == OPEN:
            found = asked(self.place, get)
            # If it is gone: it was given up, and the entry that says so is in a step that follows.
            status = _CANCELLED if found is None or (found.step, found.ordinal) != self.key else status_of(found)
        return EffectSide(self.name, self.args, status, self.answer)


class Effects:
    """Those of one side. `worlds`: where they may have been asked for, the side's own world first. `base`: the rows of
    the ancestor.
    """

    def __init__(self, worlds: Sequence[ids.Address], base: Get) -> None:
        self._worlds = worlds
        self._base = base
        self._by_intent: dict[bytes, SeenEffect] = {}
        self._by_key: dict[Key, SeenEffect] = {}
        self._open: dict[Place, Key] = {}  # before the step that is taken: the open effects that it may be about
        self.seen: dict[Place, list[SeenEffect]] = {}

    def look(self, changed: Sequence[Change], rows: Overlay) -> None:
        """What a step is going to change in these rows: effects that were open at the ancestor come into sight."""
        self._open = {}
        for change in changed:
            for place in touched(change, rows):
                found = asked(place, rows.get)
                if found is None:
                    continue
                key = self._open[place] = found.step, found.ordinal
                if key not in self._by_key:
                    # One that is open again since the world was taken back was not open at the ancestor.
                    there = asked(place, self._base)
                    was_open = there is not None and (there.step, there.ordinal) == key
                    seen = SeenEffect(place, found.name, found.params, was_open=was_open)
                    self._add(seen, key, found.asked_name, found.asked_params)

    def take(self, entries: Sequence[journal.JournalEntry], get: Get) -> None:
        """The same step. `get`: the rows behind it. Entries of the kinds in `READ` have their payloads in place."""
        for place, key in self._open.items():
            found = asked(place, get)
            if found is None or (found.step, found.ordinal) != key:
                self._by_key[key].disown()  # unless an entry says more
        late = any(entry.kind is Kind.LATE_ANSWER for entry in entries)
        by_hand: tuple[SeenEffect, str, Any] | None = None
        for entry in entries:
            match entry.kind:
                case Kind.EFFECT_REQUESTED:
                    self._requested(entry)
                case Kind.EFFECT_RESULT if not late:
                    self._answered(replay.item_of(entry))
                case Kind.SCRIPTED:
                    self._scripted(entry)
                case Kind.CONTROL:
                    by_hand = self._by_hand(replay.item_of(entry))
                case Kind.EFFECT_CANCELLED:
                    self._cancelled(entry, by_hand)
                case _:
                    pass

    def _requested(self, entry: journal.JournalEntry) -> None:
        ordinal, name, run, op, params, _ = user_values.load(_REQUESTED, entry.payload)
        seen = self._disowned((run, op))
        if seen is None:
            seen = SeenEffect((run, op), name, params)
        elif seen.key is not None:
            # It is asked for again under another key; the old one must not lead to it any more.
            del self._by_key[seen.key]
        self._add(seen, (entry.step, ordinal), name, params)

    def _disowned(self, place: Place) -> SeenEffect | None:
        """The last effect of an operation, if it is not open any more and has no answer."""
        last = self.seen.get(place, [None])[-1]
        return last if last is not None and last.disowned and last.status == OPEN else None

    def _add(self, seen: SeenEffect, key: Key, name: str, params: bytes) -> None:
        """It is asked for under this name."""
        seen.ask(key, shared=name == part_inputs.SHARE)
        self._by_key[key] = seen
        # The rows do not say which of these worlds asked, so its intent in each of them leads to it.
        for world in self._worlds:
            intent = ids.intent_id(world, step=key[0], ordinal=key[1], kind=name, params=params)
            self._by_intent[intent] = seen
        known = self.seen.setdefault(seen.place, [])
        if seen not in known:
            known.append(seen)

    def _scripted(self, entry: journal.JournalEntry) -> None:
        """A fork answers an operation itself: one that it has inherited, or one that it has just asked for."""
        run, op, kind, name, params, status, data = user_values.load(_SCRIPTED, entry.payload)
        if kind != OpKind.EFFECT:
            return
        seen = self._disowned((run, op))
        if seen is None:
            seen = SeenEffect((run, op), name, params)
            self.seen.setdefault(seen.place, []).append(seen)
        seen.end(*_outcome(Outcome(ReceiptStatus(status), data)))

    def _answered(self, item: inbox.Item) -> None:
        seen = self._by_intent.get(item.intent) if isinstance(item, inbox.EffectReceipt) else None
        if seen is not None:
            assert isinstance(item, inbox.EffectReceipt)
            seen.end(*_received(item, shared=seen.shared))

    def _by_hand(self, item: inbox.Item) -> tuple[SeenEffect, str, Any] | None:
        """The effect that a person answers with this command, and how. It counts if the effect is closed with it."""
        if not isinstance(item, inbox.Control) or item.payload.inline is None:
            return None
        given: run_repair.AnswerEffect | run_repair.AnswerRun
        if item.command == run_repair.ANSWER_EFFECT:
            given = structs.decode(run_repair.AnswerEffect, item.payload.inline)
            seen = self._by_intent.get(given.intent)
        elif item.command == run_repair.ANSWER:
            given = structs.decode(run_repair.AnswerRun, item.payload.inline)
            seen = self.seen.get((given.run, given.op - 1), [None])[-1]
        else:
            return None
        if seen is None:
            return None
        return (seen, "ok", shown(given.data)) if given.error is None else (seen, "error", {"message": given.error})

    def _cancelled(self, entry: journal.JournalEntry, by_hand: tuple[SeenEffect, str, Any] | None) -> None:
        step, ordinal, _ = user_values.load(tuple[int, int, str], entry.payload)
        seen = self._by_key.get((step, ordinal))
        if seen is not None and by_hand is not None and by_hand[0] is seen:
            seen.end(by_hand[1], by_hand[2])
        elif seen is not None:
            seen.end(_CANCELLED)


def run_of(entry: journal.JournalEntry) -> str:
    """The run that an entry names, of those kinds that name an effect by its run. Empty: another kind."""
    run = ""
    if entry.kind is Kind.EFFECT_REQUESTED:
        _, _, run, *_ = user_values.load(_REQUESTED, entry.payload)
    elif entry.kind is Kind.SCRIPTED:
        run, *_ = user_values.load(_SCRIPTED, entry.payload)
    return run


def status_of(open_effect: OpenEffectRow) -> str:
    """Of an open effect."""
    return PARKED if open_effect.parked else OPEN


def arguments(params: bytes) -> Any:
    try:
        return shown(run_requests.unpack_effect(params)[0])
    except errors.DecodeError:
        return shown(params)


def shown(data: bytes) -> Any:
    """A value as plain data, a large one by its digest; bytes that are no value as they are."""
    if len(data) > limits.INLINE_BYTES_MAX:
        return {"sha256": digest.sha256(data).hex(), "size": len(data)}
    try:
        return canonical.decode(data) if data else None
    except errors.DecodeError:
        return data


def failure(data: bytes) -> Any:
    try:
        why = structs.decode(JournaledFailure, data)
    except errors.DecodeError:
        return shown(data)
    return {"code": why.code, "message": why.message, **({"data": why.data} if why.data else {})}


def _received(receipt: inbox.EffectReceipt, *, shared: bool) -> tuple[str, Any]:
    """How an effect ended, and with what. What is shared is the parent's status and answer, inside of another one."""
    status, data = receipt.status, receipt.payload.inline
    # A large answer is shown by its digest, and is not read.
    if data is None:
        return status.name.lower(), {"sha256": (receipt.payload.ref or b"").hex(), "size": receipt.payload.size}
    outcome = Outcome(status, data)
    return _outcome(part_inputs.shared(outcome) if shared else outcome)


def _outcome(outcome: Outcome) -> tuple[str, Any]:
    status, data = outcome.status, outcome.data
    return status.name.lower(), shown(data) if status is ReceiptStatus.OK else failure(data)
