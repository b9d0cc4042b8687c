"""Comparing two states and two histories: cells field by field, runs by their ends, what was asked for side by side.

Pure functions over data: nothing here knows where the two sides come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from worldline.codec import canonical
from worldline.features.shadow.pure import shadow_report
from worldline.features.shadow.pure.shadow_report import AskedOtherwise, CellOtherwise, FieldOtherwise
from worldline.features.shadow.pure.step_requests import Ask
from worldline.model import cell_rows, row_keys
from worldline.model.rows import Rows

FIELDS_LISTED_MAX = 20
FIELDS_COUNTED_MAX = 10_000

Cells = Mapping[tuple[str, str], bytes]

_ABSENT: Any = object()  # None is a value, too


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
            listed, further = fields(_decoded(before), _decoded(after))
            found.append(CellOtherwise(*name, listed, further))
    return found


def _decoded(data: bytes | None) -> Any:
    return _ABSENT if data is None else canonical.decode(data)


def fields(old: Any, new: Any) -> tuple[list[FieldOtherwise], int]:
    """Where two decoded values differ: the first few paths, and how many more there are."""
    listed: list[FieldOtherwise] = []
    count = 0
    for path, before, after in _different("", old, new):
        count += 1
        if count <= FIELDS_LISTED_MAX:
            change = "added" if before is _ABSENT else "removed" if after is _ABSENT else "changed"
            listed.append(FieldOtherwise(path, change, _plain(before), _plain(after)))
        # Counting ends, too: two large values may have nothing in common.
        if count >= FIELDS_COUNTED_MAX:
            break
    return listed, count - len(listed)


def _plain(value: Any) -> Any:
    return None if value is _ABSENT else shadow_report.bounded(value)


def _different(path: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    if type(old) is dict and type(new) is dict:
        for name in dict.fromkeys([*old, *new]):
            yield from _different(f"{path}.{name}" if path else name, old.get(name, _ABSENT), new.get(name, _ABSENT))
    elif type(old) is list and type(new) is list:
        for index, (before, after) in enumerate(zip_longest(old, new, fillvalue=_ABSENT)):
            yield from _different(f"{path}[{index}]", before, after)
    # NaN is unequal to itself, and its text is not: equal bits are no difference.
    elif type(old) is not type(new) or (old != new and repr(old) != repr(new)):
        yield path, old, new


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
