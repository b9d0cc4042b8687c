"""What other code would do otherwise with a world's recorded inputs: the report, as data.

Lists are bounded. Of each run, and of each cell, the first difference is listed; `further` counts those behind it, and
`Report.unlisted` what did not fit into a list. Values are plain data; one that is too large is cut, and text then.
"""

from __future__ import annotations

from typing import Any

import msgspec

from worldline.base import errors
from worldline.codec import canonical
from worldline.kernel.execution import divergence_report

LISTED_MAX = 100  # differences of one kind
VALUE_BYTES_MAX = 2_048


class RequestDiff(msgspec.Struct, frozen=True):
    """What was asked for: an effect, a timer or a message. `operation` is counted from 1; 0: no run's. Step and height
    are those of the recorded step in which it was asked for.
    """

    what: str
    name: str
    arguments: Any
    text: str
    operation: int
    step: int
    height: int


class AskedOtherwise(msgspec.Struct, frozen=True):
    """`old` is None for what the other code asks for in addition, `new` for what it does not ask for. `run` is empty
    for what no run asked for. `answered`: `new` got the recorded answer of `old`; without one, its run waits.
    """

    run: str
    old: RequestDiff | None
    new: RequestDiff | None
    answered: bool = False
    further: int = 0


class BlockedRun(msgspec.Struct, frozen=True):
    """A run that the code does not fit. `at_head`: it would be blocked if the world went on under this code now. Step
    and height: where it was blocked in the trial, or those of the head.
    """

    run: str
    workflow: str
    report: str
    at_head: bool
    step: int
    height: int


class RunEnd(msgspec.Struct, frozen=True):
    """How a run stands: finished, failed, cancelled, running, blocked or "not started". `value`: its result, or the
    failure.
    """

    status: str
    value: Any = None


class RunOtherwise(msgspec.Struct, frozen=True):
    """`waits`: what it waits for under the other code, if it has not ended there."""

    run: str
    workflow: str
    old: RunEnd
    new: RunEnd
    waits: str = ""


class FieldOtherwise(msgspec.Struct, frozen=True):
    """`field`: the path to it, as in `lines[2].price`; empty for the whole value. `change`: changed, added (not in
    `old`), removed (not in `new`).
    """

    field: str
    change: str
    old: Any
    new: Any


class CellOtherwise(msgspec.Struct, frozen=True):
    """A cell that ends different, field by field; or `unfit`: why the other code's class does not take it as it is
    now. Then the events of that cell become dead letters.
    """

    reducer: str
    key: str
    fields: list[FieldOtherwise] = []
    further: int = 0
    unfit: str = ""


class InputOtherwise(msgspec.Struct, frozen=True):
    """An input that is taken, refused or answered otherwise."""

    input: str
    old: str
    new: str
    step: int
    height: int


class ShadowReport(msgspec.Struct, frozen=True):
    """What would differ. Of a world's journal, the steps from `first_step` to `last_step` were tried.

    `skipped`: answers and firings for which the other code had asked for nothing. `stopped`: why the trial ended before
    the journal did, if so; then nothing else is known.
    """

    program: str
    old_code: str  # the hash of the program that the world runs under at its head
    new_code: str
    steps: int
    first_step: int
    last_step: int
    height: int
    blocked: list[BlockedRun] = []
    effects: list[AskedOtherwise] = []
    timers: list[AskedOtherwise] = []
    messages: list[AskedOtherwise] = []
    cells: list[CellOtherwise] = []
    runs: list[RunOtherwise] = []
    inputs: list[InputOtherwise] = []
    unlisted: dict[str, int] = {}
    skipped: int = 0
    stopped: str = ""

    @property
    def differs(self) -> bool:
        """Whether anything would differ, or could not be tried."""
        return bool(self.stopped) or any(self.counts.values())

    @property
    def counts(self) -> dict[str, int]:
        """How many differences of each kind there are, listed or not; the further ones of a run or cell not counted."""
        return {kind: len(getattr(self, kind)) + self.unlisted.get(kind, 0) for kind in KINDS}


KINDS = ("blocked", "effects", "timers", "messages", "cells", "runs", "inputs")


def value_of(data: bytes) -> Any:
    """Canonical bytes as plain data, bounded."""
    if not data:
        return None
    if len(data) > VALUE_BYTES_MAX:
        return f"{divergence_report.value_text(data)[1:-1]} ({len(data)} bytes)"
    try:
        return canonical.decode(data)
    except errors.DecodeError:
        return data.hex()


def bounded(value: Any) -> Any:
    """A part of a decoded value, bounded."""
    return value_of(canonical.encode(value))
