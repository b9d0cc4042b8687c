"""What `doctor` and `verify` ask features to look at, and what is found.

`doctor` asks for checks of a universe and for the readers of records, `verify` for checks of one world's history.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

import msgspec

from worldline.base import env as envs
from worldline.keys.keyspace_table import Ordinal
from worldline.keys.space import ValueCodec
from worldline.layers.history.history_line import HistoryLine
from worldline.model import ids, journal
from worldline.store import kv


class ExamFinding(msgspec.Struct, frozen=True):
    """Something that should not be. `world`: its name; `advice`: what to do about it."""

    world: str
    kind: str
    what: str
    advice: str


class UniverseExam(msgspec.Struct):
    """A universe that `doctor` looks at, and what one check found. `repair`: what can be repaired is to be."""

    engine: kv.Engine
    env: envs.Env
    universe: ids.UniverseId
    repair: bool
    findings: list[ExamFinding] = []
    deletions: int = 0  # of worlds, that are not finished
    deletions_finished: int = 0

    def find(self, world: str, kind: str, what: str, *, advice: str) -> None:
        self.findings.append(ExamFinding(world, kind, what, advice))

    def count_deletions(self, count: int) -> None:
        """Note how many deletions were not finished."""
        self.deletions = count

    def count_finished(self, count: int) -> None:
        """Note how many of them were finished now."""
        self.deletions_finished = count


class UniverseCheck(Protocol):
    """A check of a whole universe. `what`: what it looks at, for the case that this cannot be read."""

    what: str

    async def look(self, exam: UniverseExam) -> None:
        """Note what is found."""


class StepCheck(Protocol):
    """A check that is shown the steps of a history, one after the other. `signed`: signatures that it found right."""

    signed: int

    def see(self, step: Sequence[journal.JournalEntry]) -> str:
        """What is wrong with the step; empty if nothing is."""
        ...


class HistoryCheck:
    """What `verify` asks before and while it walks through a world's history. A feature overrides what it needs."""

    async def begin(self, engine: kv.Engine, at: ids.Address) -> None:
        """Refuse a world whose history cannot be read though nothing is damaged: `KeyDestroyed`."""

    def steps(self, line: HistoryLine, receipt_keys: Collection[bytes]) -> StepCheck | None:
        """Return the check of its steps, if there is one. `receipt_keys`: who may have signed receipts."""
        del line, receipt_keys
        return None


class RecordReaders(msgspec.Struct, frozen=True):
    """What reads the values of a keyspace. `counters`: keys among them whose values are counters, and no records."""

    place: Ordinal
    codecs: tuple[ValueCodec[Any], ...]
    counters: tuple[bytes, ...] = ()
