"""All rows of a world's state: a map by key, from which whole groups can be dropped.

A group is any run of keys that begin with the same bytes. Dropping one costs what is in it, not what is in the map:
keys are found in sorted lists, which are brought up to date only when something is dropped. They may also hold keys
that are gone; those are weeded out when the lists are merged.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator

from worldline.model.change import Change, Row

_RECENT_MAX = 1_024  # keys that are put into a list one by one before it is merged into the long one


class Rows:
    __slots__ = ("_long", "_new", "_recent", "_rows")

    def __init__(self, rows: Iterable[tuple[bytes, Row]] = ()) -> None:
        self._rows = dict(rows)
        self._new = list(self._rows)  # keys that came since something was last dropped
        self._recent: list[bytes] = []  # sorted, short
        self._long: list[bytes] = []  # sorted

    def __len__(self) -> int:
        return len(self._rows)

    def keys(self) -> Iterable[bytes]:
        """In no particular order."""
        return self._rows.keys()

    def get(self, key: bytes) -> Row | None:
        return self._rows.get(key)

    def put(self, key: bytes, row: Row) -> None:
        if key not in self._rows:
            self._new.append(key)
        self._rows[key] = row

    def remove(self, key: bytes) -> None:
        """Take one row away. One that is not there is gone already."""
        self._rows.pop(key, None)

    def drop(self, group: bytes) -> None:
        """Take away every row whose key begins with these bytes."""
        for key in self._keys(group):
            self._rows.pop(key, None)

    def under(self, group: bytes) -> list[tuple[bytes, Row]]:
        """Every row whose key begins with these bytes, in the order of keys."""
        rows = self._rows
        return [(key, rows[key]) for key in sorted(dict.fromkeys(self._keys(group))) if key in rows]

    def _keys(self, group: bytes) -> Iterator[bytes]:
        """The keys that begin with these bytes, some of them twice or gone."""
        self._sort()
        for keys in (self._long, self._recent):
            for index in range(bisect.bisect_left(keys, group), len(keys)):
                if not keys[index].startswith(group):
                    break
                yield keys[index]

    def apply(self, changes: Iterable[Change]) -> None:
        """What one step changed, in the order of `worldline.model.change`."""
        rows, new = self._rows, self._new
        for change in changes:
            row, key = change.row, change.key
            if row is not None:
                if key not in rows:
                    new.append(key)
                rows[key] = row
            elif change.is_group:
                self.drop(key)
                # `drop` has sorted the new keys in and begun another list.
                new = self._new
            else:
                rows.pop(key, None)

    def items(self) -> Iterator[tuple[bytes, Row]]:
        """Everything, in the order of keys."""
        rows = self._rows
        return ((key, rows[key]) for key in sorted(rows))

    def _sort(self) -> None:
        # Merging costs as much as the map has rows: so it waits until the short lists are a good part of it.
        if len(self._recent) + len(self._new) > _RECENT_MAX + len(self._long) // 8:
            self._long, self._recent = sorted(self._rows), []
        else:
            for key in self._new:
                bisect.insort(self._recent, key)
        self._new = []
