"""Rows of a saved state, as far as they were looked up. Pure: `runtime/world_reader.py` reads them.

A hash trie finds a row by its key, and not the keys that begin with some bytes. Three things can be known of it: single
keys; what a run has asked for, whose operations are numbered from 0 on without a gap; everything but cells, which lies
in a part of the trie by itself. Asking for what is not known is a bug: an absent row and one that was not looked up
must not look the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from worldline.model import row_keys
from worldline.model.change import Row
from worldline.model.rows import Rows

FIRST_OPS: Final = 8  # of a run that are looked up at first; then twice as many, as long as there are more
_OF_OPS: Final = (row_keys.OP, row_keys.OUTCOME, row_keys.PARKED)


class KnownRows:
    __slots__ = ("_asked", "_progress", "_rows", "_whole")

    def __init__(self) -> None:
        self._rows = Rows()
        self._asked: dict[bytes, None] = {}  # keys that were looked up, whether there is a row or not
        self._progress: dict[bytes, None] = {}  # of runs: the groups whose operations are known
        self._whole = False  # all but cells

    def get(self, key: bytes) -> Row | None:
        row = self._rows.get(key)
        assert row is not None or self._knows(key), f"{row_keys.describe(key)} was not looked up"
        return row

    def under(self, group: bytes) -> list[tuple[bytes, Row]]:
        """The rows of a group, in the order of keys; of what a run has asked for, maybe its operations alone."""
        assert self._whole or group in self._progress, f"{row_keys.describe(group)} were not looked up"
        return self._rows.under(group)

    def _knows(self, key: bytes) -> bool:
        if key in self._asked or (self._whole and key[:1] != row_keys.CELL):
            return True
        group = row_keys.group_of(key)
        return group in self._progress and key[len(group) : len(group) + 1] in _OF_OPS

    # --- Looking up ----------------------------------------------------------------------------------------------

    def missing(self, keys: Iterable[bytes]) -> list[bytes]:
        """Those of these keys that must be looked up."""
        return [key for key in dict.fromkeys(keys) if self._rows.get(key) is None and not self._knows(key)]

    def take(self, asked: Iterable[bytes], rows: Mapping[bytes, Row]) -> None:
        """These keys were looked up, and these rows found."""
        for key in asked:
            self._asked[key] = None
            row = rows.get(key)
            if row is not None:
                self._rows.put(key, row)

    def take_all_but_cells(self, rows: Iterable[tuple[bytes, Row]]) -> None:
        """Every row that is not a cell. A few cells may be among them."""
        for key, row in rows:
            self._rows.put(key, row)
        self._whole = True

    @property
    def has_all_but_cells(self) -> bool:
        return self._whole

    def look_for(self, runs: Iterable[str]) -> Iterator[list[bytes]]:
        """The keys to look up, one list after the other, until each of these runs is known: how it began, its status
        and its operations. What was found of one list is to be taken before the next.
        """
        if self._whole:
            return
        names = [row_keys.text(run) for run in dict.fromkeys(runs)]
        names = [name for name in names if row_keys.PROGRESS + name not in self._progress]
        ends = (row_keys.START, row_keys.STATUS)
        yield [row_keys.RUN + name + part for name in names for part in ends]
        open_ = [name for name in names if self._rows.get(row_keys.RUN + name + row_keys.START) is not None]
        first, count = 0, FIRST_OPS
        while open_:
            numbers = [row_keys.number(each) for each in range(first, count)]
            groups = [row_keys.PROGRESS + name for name in open_]
            yield [group + part + number for group in groups for number in numbers for part in _OF_OPS]
            # Operations are numbered without a gap: only if the last one asked for is there, there may be more.
            last = row_keys.OP + numbers[-1]
            open_ = [name for name in open_ if self._rows.get(row_keys.PROGRESS + name + last) is not None]
            first, count = count, 2 * count
        # Not before the last list: until then, an operation that is missing may just not have been looked up.
        self._progress |= dict.fromkeys(row_keys.PROGRESS + name for name in names)
