"""What has changed in a state since it was last saved, so that saving it again costs no more than that.

Of a small state nothing is kept but how much has changed: it is made anew from all its rows when it is saved, which is
cheap, and what is the same is not written again. Of a larger one the changed rows are kept, each as it is now. Rows
that came and went since leave no trace: the keys of all saved rows are known, save those of cells, which seldom
go. If many of these go at once, by what their keys begin with, the saved ones among them are looked up before the state
is saved (`lacking`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from worldline.model import row_keys
from worldline.model.change import Change, Row
from worldline.model.trie.nodes import Header, NodeRef

SMALL_BYTES: Final = 64 * 1_024  # up to this size a state is saved from all its rows
CHANGE_BYTES: Final = 400  # more or less what a changed row takes in memory besides its bytes, while it is saved, too

_CELL: Final = row_keys.CELL[0]


class Unsaved:
    def __init__(self, saved: Header) -> None:
        self.header = saved  # of the state that was saved
        self.tracked = saved.size > SMALL_BYTES  # to be looked at, before changes are gathered for `take`
        self.bytes = 0  # that all changes since then take in memory; what is kept of them is no more
        self._always = False
        self._cells: dict[bytes, Row | None] = {}
        self._rows: dict[bytes, dict[bytes, Row | None]] = {}  # by group; those of no group under an empty key
        self._keys: dict[bytes, dict[bytes, None]] = {}  # of the saved rows, the same way
        self._gone: list[bytes] = []  # what the keys of cells begin with that went together

    def track(self, keys: Iterable[bytes] = ()) -> None:
        """From here on, whatever the size: rows are asked for (`cell`). Only while nothing has changed since the state
        was saved, or if that was tracked. `keys`: of all rows that were saved, unless they are known or become so.
        """
        self._always = True
        if not self.tracked:
            self.tracked = True
            self.know(keys)

    def cell(self, key: bytes) -> tuple[bool, Row | None]:
        """Whether a cell has changed since, and its row now."""
        if key in self._cells:
            return True, self._cells[key]
        return bool(self._gone) and key.startswith(tuple(self._gone)), None

    @property
    def root(self) -> NodeRef:
        """The trie that was saved."""
        return self.header.root

    @property
    def size(self) -> int:
        """Of the state that was saved."""
        return self.header.size

    def know(self, keys: Iterable[bytes]) -> None:
        """The keys of all rows that were saved."""
        if not self.tracked:
            return
        for key in keys:
            # Cells may be very many: their keys would take more memory than all other rows.
            if key[0] != _CELL:
                self._keys.setdefault(row_keys.group_of(key), {})[key] = None

    def take(self, changes: Iterable[Change]) -> None:
        """What one step changed, or several in their order."""
        if not self.tracked:
            return
        for change in changes:
            key, row = change.key, change.row
            self.bytes += CHANGE_BYTES + len(key)
            if row is not None:
                self.bytes += len(row.meaning)
            if change.is_group:
                if row_keys.is_group(key):
                    # What was put into the group since the save is forgotten; what was saved of it is gone.
                    self._rows[key] = dict.fromkeys(self._keys.get(key, ()))
                else:
                    self._drop(key)
            elif key[0] == _CELL:
                self._cells[key] = row
            else:
                group = row_keys.group_of(key)
                rows = self._rows.setdefault(group, {})
                if row is not None or key in self._keys.get(group, ()):
                    rows[key] = row
                else:
                    rows.pop(key, None)

    def grew(self, size: int) -> None:
        """A state of which the changes are not kept has become larger by this, at most."""
        self.bytes += size

    def _drop(self, prefix: bytes) -> None:
        """Rows of several groups go, or of a part of one."""
        for group in dict.fromkeys([*self._keys, *self._rows]):
            saved, rows = self._keys.get(group, {}), self._rows.setdefault(group, {})
            for key in [key for key in dict.fromkeys([*saved, *rows]) if key.startswith(prefix)]:
                rows.pop(key, None)
                if key in saved:
                    rows[key] = None
        # Keys of saved cells are not in memory: which of them went is looked up before the next save.
        if prefix[:1] in (b"", row_keys.CELL):
            self._gone.append(prefix)
            self._cells |= dict.fromkeys(key for key in self._cells if key.startswith(prefix))

    @property
    def lacking(self) -> bool:
        """Whether the keys of saved cells must be known (`find`) before the changes are."""
        return bool(self._gone)

    def find(self, keys: Iterable[bytes]) -> None:
        """The keys of all cells that were saved."""
        gone = tuple(self._gone)
        self._cells |= dict.fromkeys(key for key in keys if key.startswith(gone) and key not in self._cells)
        self._gone = []

    def changed(self) -> list[tuple[bytes, Row | None]]:
        """Every row that is not as it was saved, or may not be."""
        assert not self._gone, "the keys of the cells that went are not known"
        found: list[tuple[bytes, Row | None]] = [*self._cells.items()]
        for rows in self._rows.values():
            found += rows.items()
        return found

    def changed_to(self, rows: Iterable[tuple[bytes, Row | None]]) -> list[tuple[bytes, Row | None]]:
        """The same, if the rows that are no cells are these now, and the cells among them have changed since.
        None for one that is gone.
        """
        found: dict[bytes, Row | None] = {key: None for known in self._keys.values() for key in known}
        found |= self._cells
        found.update(rows)
        return list(found.items())

    def saved(self, header: Header, keys: Iterable[bytes] | None = None) -> None:
        """All of it is saved now, by the changes; or, with `keys`, by all rows there are."""
        if keys is None:
            self._keep_keys()
        else:
            self._forget()
        self._cells, self._rows, self._gone, self.bytes = {}, {}, [], 0
        self.header = header
        self.tracked = self._always or header.size > SMALL_BYTES
        if not self.tracked:
            self._forget()
        elif keys is not None:
            self.know(keys)

    def _forget(self) -> None:
        self._cells, self._rows, self._keys, self._gone, self.bytes = {}, {}, {}, [], 0

    def _keep_keys(self) -> None:
        for group, rows in self._rows.items():
            known = self._keys.setdefault(group, {})
            for key, row in rows.items():
                if row is None:
                    known.pop(key, None)
                else:
                    known[key] = None
            if not known:
                del self._keys[group]
