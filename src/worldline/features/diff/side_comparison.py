"""Comparing two sides: only the rows that one of them has changed since the common ancestor are looked at, and of runs
among these, their rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from worldline.codec import canonical
from worldline.codec.differences import Field, differences, same
from worldline.features.diff import effect_history, open_effect_rows
from worldline.features.diff.diff_side import Side
from worldline.features.diff.open_effect_rows import fields
from worldline.features.diff.records import CellDiff, Diff, EffectDiff, EffectSide, How, RunDiff, RunSide, Sides
from worldline.kernel.rows.row_records import ENDED, RunStatus
from worldline.kernel.run_operations import OpKind, describe
from worldline.layers.history.row_overlay import Overlay
from worldline.model import cell_rows, journal, row_keys
from worldline.model.change import Row

_COUNTS: Final = ("operations", "done")  # unknown of ended runs
_NESTED: Final = ("result", "error")


def compare(ancestor: str, start: journal.Head, left: Side, right: Side) -> Diff:
    """`ancestor`: the name of the world that both sides have come from, at the head `start`."""
    named = sorted(dict.fromkeys([*left.rows.named(), *right.rows.named()]))
    cells = [_cell(key, left.rows, right.rows) for key in named if key[:1] == row_keys.CELL]
    ids = sorted(dict.fromkeys(map(row_keys.run_of, named)))
    runs = [_run(each, left.rows, right.rows) for each in ids if each]
    return Diff(
        ancestor,
        start.step,
        start.height,
        [each for each in cells if each is not None],
        [each for each in runs if each is not None],
        Sides(left.entries(), right.entries()),
        _effects(left, right),
    )


def _how(left: object, right: object) -> How:
    return "added" if left is None else "removed" if right is None else "changed"


def _same(left: RunSide | EffectSide | None, right: RunSide | EffectSide | None) -> bool:
    """Whether two sides say the very same: 1, 1.0 and True are three answers."""
    return same(*(None if side is None else list(msgspec.structs.astuple(side)) for side in (left, right)))


# --- Cells -----------------------------------------------------------------------------------------------------


def _cell(key: bytes, left: Overlay, right: Overlay) -> CellDiff | None:
    """How often a cell was folded is not its value."""
    before, after = (_cell_data(rows.get(key)) for rows in (left, right))
    if before == after:
        return None
    reducer, name = row_keys.parse(key).texts
    if before is None or after is None:
        values = [None if data is None else canonical.decode(data) for data in (before, after)]
        return CellDiff(reducer, name, _how(before, after), values[0], values[1])
    found = differences(canonical.decode(before), canonical.decode(after))
    return CellDiff(reducer, name, "changed", fields=tuple(found))


def _cell_data(row: Row | None) -> bytes | None:
    return None if row is None else cell_rows.decode(row.meaning).data


# --- Runs ------------------------------------------------------------------------------------------------------


def _run(run: str, left: Overlay, right: Overlay) -> RunDiff | None:
    before, after = _run_side(run, left), _run_side(run, right)
    if _same(before, after):
        return None
    if before is None or after is None:
        return RunDiff(run, _how(before, after), before, after)
    return RunDiff(run, "changed", before, after, tuple(_run_fields(before, after)))


def _run_fields(left: RunSide, right: RunSide) -> Iterator[Field]:
    """What it gave or failed with field by field, all else as it is. Counts that a side does not know are no
    difference.
    """
    for name in RunSide.__struct_fields__:
        before, after = getattr(left, name), getattr(right, name)
        if same(before, after) or (name in _COUNTS and None in (before, after)):
            continue
        if name in _NESTED and None not in (before, after):
            for field in differences(before, after):
                yield msgspec.structs.replace(field, path=(name, *field.path))
        else:
            yield Field((name,), "changed", before, after)


def _run_side(run: str, rows: Overlay) -> RunSide | None:
    """A run by its rows."""
    group = row_keys.text(run)
    start = rows.get(row_keys.RUN + group + row_keys.START)
    if start is None:
        return None
    workflow, restarts = fields(start.meaning)[0], fields(start.meaning)[7]
    row = rows.get(row_keys.RUN + group + row_keys.STATUS)
    number, data, blocked = (RunStatus.RUNNING, b"", "") if row is None else fields(row.meaning)
    status = RunStatus(number)
    ended = status in ENDED
    finished = status is RunStatus.FINISHED
    operations, done, waits_for = (None, None, []) if ended else _progress(run, rows)
    return RunSide(
        workflow,
        status.name.lower(),
        effect_history.shown(data) if finished else None,
        blocked or (effect_history.failure(data) if ended and not finished else None),
        operations,
        done,
        waits_for,
        restarts,
    )


def _progress(run: str, rows: Overlay) -> tuple[int, int, list[str]]:
    """How many operations it has asked for, how many are done, and what the others wait for."""
    asked: dict[int, Row] = {}
    done: dict[int, None] = {}
    for key, row in rows.under(row_keys.PROGRESS + row_keys.text(run)):
        parsed = row_keys.parse(key)
        if parsed.part == row_keys.OP:
            asked[parsed.number] = row
        elif parsed.part == row_keys.OUTCOME:
            done[parsed.number] = None
    waits: list[str] = []
    for number, row in sorted(asked.items()):
        if number not in done:
            kind, name, *_ = fields(row.meaning)
            if kind != OpKind.AFTER:
                waits.append(describe(OpKind(kind), name, run=run, number=number))
    return len(asked), len(done), waits


# --- Effects ---------------------------------------------------------------------------------------------------


def _effects(left: Side, right: Side) -> list[EffectDiff]:
    found: list[EffectDiff] = []
    for place in sorted({**left.effects.seen, **right.effects.seen}):
        both = [_of_place(side, other, place) for side, other in ((left, right), (right, left))]
        for index in range(max(map(len, both))):
            before, after = (side[index] if index < len(side) else None for side in both)
            if not _same(before, after):
                found.append(EffectDiff(place[0], place[1] + 1, _how(before, after), before, after))
    return found


def _of_place(side: Side, other: Side, place: open_effect_rows.Place) -> list[EffectSide]:
    """The effects that one operation has asked for on one side. One that the other side alone has touched, and that was
    asked for before the ancestor, is here as it was there.
    """
    seen = side.effects.seen.get(place, [])
    found = [each.side(side.rows.get) for each in seen]
    for each in other.effects.seen.get(place, []):
        if each.was_open and not any(mine.was_open for mine in seen):
            open_there = open_effect_rows.asked(place, side.base.get)
            assert open_there is not None, "it was open at the ancestor"
            # First, because it was asked for before the ancestor, and the others after it.
            found.insert(0, EffectSide(each.name, each.args, effect_history.status_of(open_there)))
    return found
