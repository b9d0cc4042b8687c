"""Comparing two states and two histories: cells field by field, runs by their ends, what was asked for side by side.

Pure functions over data: nothing here knows where the two sides come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from typing import Any

from worldline.codec import canonical
from worldline.codec.differences import Field, How, each_difference, path_text
from worldline.features.shadow.pure import shadow_report
from worldline.features.shadow.pure.shadow_report import AskedOtherwise, CellOtherwise, FieldOtherwise
from worldline.features.shadow.pure.step_requests import Ask
from worldline.model import cell_rows, row_keys
from worldline.model.rows import Rows

FIELDS_LISTED_MAX = 20
FIELDS_COUNTED_MAX = 10_000

Cells = Mapping[tuple[str, str], bytes]


def cells_of(rows: Rows) -> dict[tuple[str, str], bytes]:
    """The data of every cell, by reducer and key."""
    found: dict[tuple[str, str], bytes] = {}
    for key, row in rows.under(row_keys.CELL):
        reducer, name = row_keys.parse(key).texts
        found[reducer, name] = cell_rows.decode(row.meaning).data
    return found


def cells(old: Cells, new: Cells) -> list[CellOtherwise]:
    """The cells that differ, in the order of their names."""
    found = []
    for name in sorted({**old, **new}):
        before, after = old.get(name), new.get(name)
        if before != after:
            found.append(CellOtherwise(*name, *_of_cell(before, after)))
    return found


def _of_cell(old: bytes | None, new: bytes | None) -> tuple[list[FieldOtherwise], int]:
    if old is None or new is None:
        change: How = "added" if old is None else "removed"
        values = [None if data is None else canonical.decode(data) for data in (old, new)]
        return [_field(Field((), change, *values))], 0
    return fields(canonical.decode(old), canonical.decode(new))


def fields(old: Any, new: Any) -> tuple[list[FieldOtherwise], int]:
    """Where two decoded values differ: the first few paths, and how many more there are."""
    # Counting ends, too: two large values may have nothing in common.
    found = list(islice(each_difference(old, new), FIELDS_COUNTED_MAX))
    listed = [_field(each) for each in found[:FIELDS_LISTED_MAX]]
    return listed, len(found) - len(listed)


def _field(difference: Field) -> FieldOtherwise:
    values = (shadow_report.bounded(value) for value in (difference.left, difference.right))
    return FieldOtherwise(path_text(difference.path), difference.change, *values)


def asks(
    pairs: Sequence[tuple[Ask, Ask]], left: Sequence[Ask], added: Sequence[Ask], silent: Mapping[str, Any]
) -> list[AskedOtherwise]:
    """What was asked for otherwise: the first difference of each run, or of each name where no run asked. What is
    different behind that mostly follows from it, and is only counted.

    `pairs`: asked for by both, maybe under other conditions; `left` and `added`: by one of them. `silent`: runs whose
    code does not run on the other side, so it is no wonder what is missing.
    """
    groups: dict[tuple[str, str], list[AskedOtherwise]] = {}
    for old, new in pairs:
        if not old.same_as(new):
            groups.setdefault(old.group, []).append(AskedOtherwise(new.run, old.shown(), new.shown(), answered=True))
    for before, after in _paired([each for each in left if each.run not in silent], added):
        side = before or after
        assert side is not None
        old_shown, new_shown = (None if each is None else each.shown() for each in (before, after))
        groups.setdefault(side.group, []).append(AskedOtherwise(side.run, old_shown, new_shown))
    found = []
    for differing in groups.values():
        # What follows the first difference of a run mostly comes of it, so the earliest is shown.
        first = min(differing, key=_height)
        found.append(AskedOtherwise(first.run, first.old, first.new, first.answered, len(differing) - 1))
    return sorted(found, key=_height)


def _paired(left: Sequence[Ask], added: Sequence[Ask]) -> Iterator[tuple[Ask | None, Ask | None]]:
    """Side by side: of a run what is the same operation, of others what comes in the same place of its kind."""
    places: dict[tuple[Any, ...], tuple[list[Ask], list[Ask]]] = {}
    for side, asks in enumerate((left, added)):
        for each in asks:
            place = (each.run, each.incarnation, each.op) if each.run else (each.group, each.what)
            places.setdefault(place, ([], []))[side].append(each)
    for olds, news in places.values():
        yield from zip_longest(olds, news)


def _height(each: AskedOtherwise) -> int:
    return min(side.height for side in (each.old, each.new) if side is not None)
