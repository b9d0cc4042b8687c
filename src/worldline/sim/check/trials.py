"""POISON: an input is settled without its code only after as many holders as the budget says have died over it.

Counted from the batches alone: every holder that marks an input before its step counts once, and so does every step
that is held against its input while its process lives.
"""

from __future__ import annotations

from collections.abc import Callable

from worldline.codec import structs
from worldline.keys import journal as journal_keys
from worldline.keys import trial as trial_keys
from worldline.model import ids, journal
from worldline.model.journal import Kind
from worldline.model.lease import Running
from worldline.sim.runtime import keyspaces
from worldline.sim.runtime.truth import Applied

Marks = dict[bytes, dict[tuple[int, int], None]]  # of each input: epoch, and deaths that were held against it then


class Trials:
    def __init__(self, budget: int, broken: Callable[[str, str], None]) -> None:
        self._budget = budget
        self._broken = broken
        self._marks: dict[tuple[ids.Address, int], Marks] = {}  # by the step of the head

    def look(self, applied: Applied) -> None:
        for key in applied.before:
            where = keyspaces.place(key)
            if where.what == "trial":
                assert where.at is not None
                put = applied.batch.puts.get(key)
                if put is not None:
                    self._marked(where.at, put.value)
                elif journal_keys.head_key(where.at) in applied.batch.puts:
                    self._stepped(where.at, applied)

    def _marked(self, at: ids.Address, raw: bytes) -> None:
        trial = trial_keys.TRIAL.unpack(raw)
        if not trial.input or trial.running is Running.RESTORE:
            return
        held_against = trial.step_deaths if trial.running is Running.NOTHING else 0
        marks = self._marks.setdefault((at, trial.step), {}).setdefault(trial.input, {})
        marks[trial.epoch, held_against] = None

    def _stepped(self, at: ids.Address, applied: Applied) -> None:
        """A step of a world on trial: it is made over one input."""
        for key, put in applied.batch.puts.items():
            if keyspaces.place(key).what != "journal":
                continue
            for raw in journal_keys.unpack_frame(put.value).entries:
                entry = structs.decode(journal.Entry, raw)
                if entry.kind is Kind.POISON:
                    self._poisoned(at, entry.step - 1)

    def _poisoned(self, at: ids.Address, step: int) -> None:
        holders = max(map(len, self._marks.get((at, step), {}).values()), default=0)
        if holders < self._budget:
            self._broken("POISON", f"an input was settled without code after {holders} holders of {self._budget}")
