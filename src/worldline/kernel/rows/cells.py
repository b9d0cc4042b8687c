"""The cells of a world that are in memory. All others are fetched when an event reaches them or they are read.

A machine either has all its cells here (`fetch` is None), or is given a `fetch` by its host: the row of a cell as it
stood at the end of the last durable step, or None if there is no such cell. `fetch` may block the thread; it must not
depend on anything but the state, so it makes no difference to a step which cells were here. The order of this map is
that of last use; the host drops the cells used longest ago between steps (`cool`).

What cells take in memory is estimated, by what a few of their values take: a value can be many times its bytes.
"""

from __future__ import annotations

import gc
import itertools
import sys
import types
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from worldline.base import errors, probes
from worldline.codec import canonical
from worldline.kernel.rows.row_ledger import RowLedger, row_of
from worldline.kernel.rows.row_records import UNREAD, Cell
from worldline.model import cell_rows
from worldline.model import row_keys as keys
from worldline.model.cell_rows import CellKind, StoredCell
from worldline.model.change import DELTA_BYTES_MIN, Change, Row


class Trie(Protocol):
    """The state as it was last saved, and what has changed since."""

    def root(self, rows: list[tuple[bytes, Row | None]]) -> bytes:
        """The root of the whole state (`model/trie`). `rows`: every row that is no cell, and each cell that may have
        changed since the last durable step; None for one that is gone since. `CannotRead` if it cannot be told now.
        """
        ...


class Fetch(Trie, Protocol):
    """Where the cells are that are not in memory."""

    def __call__(self, key: bytes, /) -> Row | None: ...


CELL_BYTES = 350  # more or less what a cell takes in memory besides its key, its data and its value
VALUE_BYTES = 200  # the same for its value, besides what grows with its data
_LOOK_SHARE = 16  # the size of all cells is looked at when a sixteenth of them is new
_SAMPLE = 32  # cells whose values are looked at to know what values take
_OBJECTS_MAX = 1_000  # of one value; beyond that its size is worked out from these
_SHARED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.NoneType, bool)


class Cells(dict[tuple[str, str], Cell]):
    def __init__(self, fetch: Fetch | None = None) -> None:
        super().__init__()
        self.fetch = fetch
        self._new = 0  # since the size was last looked at
        # Used since all were durable, and gone since; both only if there is a fetch, which does not know of it yet.
        self._recent: dict[tuple[str, str], None] = {}
        self._gone: dict[tuple[str, str], None] = {}
        self._trie: Trie | None = fetch
        self._new_changes: Sequence[Change] = ()  # of steps that are not durable yet, if all cells are here

    def save_in(self, trie: Trie) -> None:
        """All cells are here, and the state is saved in this trie, too: its root need not be made of all rows."""
        self._trie = trie

    def begin_steps(self, changes: Sequence[Change]) -> None:
        """All that came before is durable. The changes of the steps that follow are added to this list."""
        self._new_changes = changes

    def continue_from(self, other: Cells) -> None:
        """These take the place of others in the same world, within a step."""
        self._trie, self._new_changes = other._trie, other._new_changes

    def root(self, rows_beside: Iterable[tuple[bytes, Row]]) -> bytes | None:
        """Return the root of the state, by what has changed since it was saved; None if it must be made of all rows."""
        if self._trie is None:
            return None
        if self.fetch is not None:
            return self.fetch.root([*rows_beside, *self.recent()])
        changed = [each for each in self._new_changes if each.key[:1] == keys.CELL]
        # A group that went cannot be given to the trie as single rows.
        if any(each.is_group for each in self._new_changes if not each.key or each.key[:1] == keys.CELL):
            return None
        try:
            return self._trie.root([*rows_beside, *((each.key, each.row) for each in changed)])
        except errors.CannotRead:
            probes.hit("cells.root-of-all-rows")
            return None

    @property
    def are_all(self) -> bool:
        """Whether every cell of the world is here."""
        return self.fetch is None

    def draw_from(self, fetch: Fetch) -> None:
        """All cells are durable: from here on they may be dropped, and are fetched when they are needed."""
        self.fetch = self._trie = fetch
        self._new = len(self)
        self._recent, self._gone = {}, {}

    def find(self, key: tuple[str, str]) -> Cell | None:
        """A cell, wherever it is. It counts as used now."""
        if self.fetch is None:
            return self.get(key)
        # Taken out and put back: the order of the map is that of last use.
        cell = self.pop(key, None)
        if cell is None:
            # `fetch` still has a cell that is gone in a step which is not durable.
            row = None if key in self._gone else self.fetch(keys.cell(*key))
            if row is None:
                return None
            self._new += 1
            cell = cell_of(key, row)
        self[key] = cell
        self._recent[key] = None
        return cell

    def new(self, key: tuple[str, str], value: Any, data: bytes) -> Cell:
        cell = Cell(keys.cell(*key), value, data)
        self.add(key, cell)
        return cell

    def add(self, key: tuple[str, str], cell: Cell) -> None:
        """One that was not here."""
        self[key] = cell
        self._new += 1
        if self.fetch is not None:
            self._recent[key] = None
            self._gone.pop(key, None)

    def gone(self, key: tuple[str, str]) -> None:
        """There is no such cell any more, which `fetch` does not know before the step is durable."""
        if self.fetch is not None:
            self._gone[key] = None

    def all_gone(self) -> list[tuple[str, str]]:
        """Those that are gone since all were durable."""
        return list(self._gone)

    def recent(self) -> list[tuple[bytes, Row | None]]:
        """The rows of cells that were used since the host last said that all are durable: each that has changed is
        among them. None for one that is gone.
        """
        found: list[tuple[bytes, Row | None]] = [(keys.cell(*key), None) for key in self._gone]
        return found + [(self[key].key, row_of(self[key].write())) for key in self._recent if key in self]

    def cool(self, bytes_max: int) -> int:
        """Between steps that are durable: drop the cells used longest ago until the others take no more than this.
        Returns how many went.
        """
        # All is durable, so `fetch` knows of it from here on.
        self._recent, self._gone = {}, {}
        if self.fetch is None or self._new * _LOOK_SHARE <= len(self):
            return 0
        self._new = 0
        each, share = self._taken()
        size = self._size(each, share)
        if size <= bytes_max:
            return 0
        gone: list[tuple[str, str]] = []
        for key, cell in self.items():
            size -= each + 2 * len(cell.key) + share * len(cell.data) // 100
            gone.append(key)
            if size <= bytes_max:
                break
        for key in gone:
            del self[key]
        return len(gone)

    def size(self) -> int:
        """About how many bytes of memory they take."""
        return self._size(*self._taken())

    def _size(self, each: int, share: int) -> int:
        """The key of a cell is there as bytes and as text."""
        hundredths = sum([200 * len(cell.key) + share * len(cell.data) for cell in self.values()])
        return each * len(self) + hundredths // 100

    def _taken(self) -> tuple[int, int]:
        """How much memory a cell takes: whatever it holds, and for each byte of its data, in hundredths. By the values
        of a few from all over.
        """
        sample = list(itertools.islice(self.values(), 0, None, max(1, len(self) // _SAMPLE)))
        values = [cell.value for cell in sample if cell.value is not UNREAD]
        taken = sum(max(0, value_bytes(value) - VALUE_BYTES) for value in values)
        length = sum(len(cell.data) for cell in sample)
        return CELL_BYTES + VALUE_BYTES * len(values) // max(1, len(sample)), 100 + 100 * taken // max(1, length)


def value_bytes(value: object) -> int:
    """What an object takes with everything that it refers to, save what is no part of a value. What is referred to
    twice counts twice.
    """
    size = seen = 0
    waiting: list[object] = [value]
    while waiting and seen < _OBJECTS_MAX:
        each = waiting.pop()
        seen += 1
        size += sys.getsizeof(each)
        if type(each) is dict:
            waiting += [*each, *each.values()]  # a dict does not name keys that are text
        else:
            waiting += [other for other in gc.get_referents(each) if not isinstance(other, _SHARED)]
    # What was not looked at counts as much as the average of what was.
    return size + len(waiting) * size // max(1, seen)


def mark(ledger: RowLedger, cell: Cell, was: tuple[int, bytes, CellKind] | None) -> None:
    """A cell has changed. `was`: its folds, its bytes and its kind before, if there was one."""
    if was is None:
        ledger.top.put(cell.key, cell.write, is_new=True)
        return
    # A small row is always stored whole, so a base would be kept for nothing.
    is_large = len(was[1]) > DELTA_BYTES_MIN
    ledger.top.put(cell.key, cell.write, base=canonical.encode_flat(StoredCell(*was).fields) if is_large else None)


def cell_of(key: tuple[str, str], row: Row) -> Cell:
    try:
        folds, data, kind = cell_rows.decode(row.meaning)
    except errors.DecodeError as error:
        raise errors.DecodeError(f"cell {key!r}: {error}") from error
    return Cell(keys.cell(*key), UNREAD, data, folds, kind)
