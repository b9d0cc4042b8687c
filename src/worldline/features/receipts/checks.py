"""Signatures of receipts in a journal: each that there is, and, if keys are given, whether every effect's has one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from worldline.features.receipts import receipt_signature
from worldline.kernel import replay, user_values
from worldline.kernel.authoring import message_calls
from worldline.layers.history import history_line
from worldline.model import ids, inbox, journal
from worldline.model.journal import Kind
from worldline.runtime.feature_checks import HistoryCheck, StepCheck


class SignatureCheck(HistoryCheck):
    def steps(self, line: history_line.HistoryLine, receipt_keys: Collection[bytes]) -> StepCheck:
        return Receipts(line, receipt_keys)


class Receipts:
    """What is known while a journal is read, step by step."""

    def __init__(self, line: history_line.HistoryLine, keys: Collection[bytes]) -> None:
        self._line = line
        self._keys = keys
        self._asked: set[bytes] = set()  # effects that effect workers have to answer, by intent, as far as seen
        self.signed = 0

    def see(self, step: Sequence[journal.JournalEntry]) -> str:
        """What is wrong with the receipt that a step has taken; empty if nothing is."""
        at = self._line.identity(step[0].height)
        wrong = self._wrong(step[0], at) if step[0].kind is Kind.EFFECT_RESULT and not step[0].blob else ""
        if self._keys:
            for entry in step:
                if entry.kind is Kind.EFFECT_REQUESTED and not entry.blob:
                    self._ask(entry, at)
        return wrong

    def _wrong(self, entry: journal.JournalEntry, at: ids.Address) -> str:
        item = replay.item_of(entry)
        assert isinstance(item, inbox.EffectReceipt)
        asked = item.intent in self._asked
        self._asked.discard(item.intent)
        if isinstance(item, inbox.SignedReceipt):
            self.signed += 1
        elif not asked or not item.attempt:
            return ""  # one of the runtime's own, or its effect was asked for before what is kept
        return receipt_signature.why_not(at, item, self._keys)

    def _ask(self, entry: journal.JournalEntry, at: ids.Address) -> None:
        said = user_values.load(list[Any], entry.payload)
        ordinal, name, params = said[0], said[1], said[4]
        # Messages are answered by the runtime itself, which signs nothing.
        if name != message_calls.SEND:
            self._asked.add(ids.intent_id(at, step=entry.step, ordinal=ordinal, kind=name, params=params))
