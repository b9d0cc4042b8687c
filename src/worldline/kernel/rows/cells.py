"""The cells of a world that are in memory. All others are fetched when an event reaches them or they are read.

A machine either has all its cells here (`fetch` is None), or is given a `fetch` by its host: the row of a cell as it
stood at the end of the last durable step, or None if there is no such cell. `fetch` may block the thread; it must not
depend on anything but the state, so it makes no difference to a step which cells were here. The order of this map is
that of last use; the host drops the cells used longest ago between steps (`cool`).
"""

from __future__ import annotations

from typing import Any, Protocol

from worldline.base import errors
from worldline.codec import canonical
from worldline.kernel.rows.ledger import Ledger, row_of
from worldline.kernel.rows.records import UNREAD, Cell
from worldline.model import row_keys as keys
from worldline.model.change import DELTA_BYTES_MIN, Row


class Fetch(Protocol):
    """Where the cells are that are not in memory."""

    def __call__(self, key: bytes, /) -> Row | None: ...

    def root(self, rows: list[tuple[bytes, Row | None]]) -> bytes:
        """The root of the whole state (`model/trie`). `rows`: every row that is no cell, and each cell that may have
        changed since the last durable step; None for one that is gone since.
        """
        ...


CELL_BYTES = 512  # more or less what a cell takes in memory besides its data
_LOOK_SHARE = 16  # the size of all cells is looked at when a sixteenth of them is new


class Cells(dict[tuple[str, str], Cell]):
    def __init__(self, fetch: Fetch | None = None) -> None:
        super().__init__()
        self.fetch = fetch
        self._new = 0  # since the size was last looked at
        # Used since all were durable, and gone since; both only if there is a fetch, which does not know of it yet.
        self._recent: dict[tuple[str, str], None] = {}
        self._gone: dict[tuple[str, str], None] = {}

    @property
    def are_all(self) -> bool:
        """Whether every cell of the world is here."""
        return self.fetch is None

    def draw_from(self, fetch: Fetch) -> None:
        """All cells are durable: from here on they may be dropped, and are fetched when they are needed."""
        self.fetch = fetch
        self._new = len(self)
        self._recent, self._gone = {}, {}

    def find(self, key: tuple[str, str]) -> Cell | None:
        """A cell, wherever it is. It counts as used now."""
        if self.fetch is None:
            return self.get(key)
        cell = self.pop(key, None)
        if cell is None:
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
        self._recent, self._gone = {}, {}
        if self.fetch is None or self._new * _LOOK_SHARE <= len(self):
            return 0
        self._new = 0
        size = sum([CELL_BYTES + len(cell.data) for cell in self.values()])
        if size <= bytes_max:
            return 0
        gone: list[tuple[str, str]] = []
        for key, cell in self.items():
            size -= CELL_BYTES + len(cell.data)
            gone.append(key)
            if size <= bytes_max:
                break
        for key in gone:
            del self[key]
        return len(gone)


def mark(ledger: Ledger, cell: Cell, before: tuple[int, bytes] | None) -> None:
    """A cell has changed. `before`: its folds and its bytes before, if there was one."""
    if before is None:
        ledger.top.put(cell.key, cell.write, is_new=True)
        return
    is_large = len(before[1]) > DELTA_BYTES_MIN
    ledger.top.put(cell.key, cell.write, base=canonical.encode_flat(list(before)) if is_large else None)


def cell_of(key: tuple[str, str], row: Row) -> Cell:
    match canonical.decode(row.meaning):
        case [int(folds), bytes(data)]:
            return Cell(keys.cell(*key), UNREAD, data, folds)
        case _:
            raise errors.DecodeError(f"the row of cell {key!r} is no number of folds and data")
