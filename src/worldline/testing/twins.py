"""Doing a step twice: what differs was not determined by the journal.

The second machine comes from a snapshot taken before the step, so it also shows that a world brought back does what the
warm one does: its runs are rebuilt from their records, its cells read from their bytes.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from worldline.base import errors
from worldline.codec import canonical, structs
from worldline.kernel import replay, state_rows
from worldline.kernel.execution import divergence_report
from worldline.kernel.machine import Blocked, Machine
from worldline.kernel.rows.row_records import RunStatus
from worldline.model import row_keys
from worldline.model.journal import Kind
from worldline.model.step_records import Stepped


def difference(first: tuple[Machine, Stepped], second: tuple[Machine, Stepped], *, height: int) -> str:
    """The first difference between a step and its repetition, for people; nothing if they are the same."""
    for machine, stepped in (first, second):
        assert machine.state == stepped.state
    return (
        # Runs first: a run that does not fit its own record explains every other difference.
        _runs(first[0], second[0])
        or _drafts(first[1], second[1], height)
        or _asked(first[1], second[1])
        or _cells(first[0], second[0])
        or _rest(first[0], second[0])
    )


def blocked(machine: Machine, expected: Container[str] = ()) -> str:
    """The divergence of a run that its own code no longer fits, if there is one that was not expected."""
    runs = [run.record for run in machine.live_runs() if run.record.status is RunStatus.BLOCKED]
    return next((divergence_report.finding(record.blocked) for record in runs if record.id not in expected), "")


def unfit(stepped: Stepped) -> dict[str, str]:
    """The runs that a step blocked because of an answer that does not fit the code now, and the reports: that is no
    fault of the code that asked.
    """
    blocks = [structs.decode(Blocked, each.payload) for each in stepped.drafts if each.kind is Kind.RUN_BLOCKED]
    return {each.run: each.report for each in blocks if each.unfit}


def _runs(first: Machine, second: Machine) -> str:
    if blocked(first) == blocked(second):
        return ""
    return f"a run brought back from its record does not do what it did:\n{blocked(second) or blocked(first)}"


def _drafts(first: Stepped, second: Stepped, height: int) -> str:
    # The longer of the two: one entry more is a difference as well.
    for index in range(max(len(first.drafts), len(second.drafts))):
        sides = [each.drafts[index] if index < len(each.drafts) else None for each in (first, second)]
        if sides[0] != sides[1]:
            texts = ["nothing" if each is None else replay.describe(each.kind, each.payload) for each in sides]
            return f"entry {height + index}:\n  first: {texts[0]}\n  again: {texts[1]}"
    return ""


def _asked(first: Stepped, second: Stepped) -> str:
    for name in ("wanted", "closed", "cancelled", "outgoing", "dead"):
        sides = getattr(first, name), getattr(second, name)
        if sides[0] != sides[1]:
            return f"{name}:\n  first: {sides[0]!r}\n  again: {sides[1]!r}"
    return ""


def _cells(first: Machine, second: Machine) -> str:
    for key in sorted({**first.cells, **second.cells}):
        sides = [None if (cell := each.cells.get(key)) is None else cell.data for each in (first, second)]
        if sides[0] != sides[1]:
            return f"cell {row_keys.cell_name(*key)}:\n  first: {_value(sides[0])!r}\n  again: {_value(sides[1])!r}"
    return ""


def _rest(first: Machine, second: Machine) -> str:
    for number, (run, other) in enumerate(zip(first.runs.values(), second.runs.values(), strict=False)):
        if run.record != other.record:
            return f"run {run.record.id!r} (number {number + 1}):\n  first: {run.record!r}\n  again: {other.record!r}"
    if state_rows.save(first) != state_rows.save(second):  # the last resort: it covers everything, and names nothing
        return "the snapshots taken afterwards"
    return ""


def _value(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return canonical.decode(data)
    except errors.DecodeError:
        return data
