"""What the row of a cell says: how often the cell was folded, its data, and what kind of cell it is.

Every reader of such rows decodes them here. A cell of a reducer is written as [folds, data]. A cell of a flow domain is
written as [folds, data, kind] since format 2.4. Steps that were made before wrote no kind: such a row looks like a
reducer's, and keeps its bytes until the cell changes. `Domains.kinds` says which of the two a step writes.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from worldline.base import errors
from worldline.codec import canonical


class CellKind(enum.IntEnum):
    """Whose cell it is. Ordinals are stored, and never reused."""

    REDUCER = 0  # or of a flow domain, before rows had a kind; never written
    DOMAIN = 1  # of a flow domain


class StoredCell(NamedTuple):
    """The row of a cell."""

    folds: int
    data: bytes
    kind: CellKind

    @property
    def fields(self) -> list[Any]:
        """The row's fields as they are stored."""
        return [self.folds, self.data, int(self.kind)] if self.kind else [self.folds, self.data]


def decode(meaning: bytes) -> StoredCell:
    """Return what the meaning of a cell's row says. `DecodeError` for what is none, or has a kind that is unknown."""
    return read(canonical.decode(meaning))


def read(fields: object) -> StoredCell:
    """Return the same of a meaning whose fields are decoded."""
    match fields:
        case [int(folds), bytes(data)]:
            return StoredCell(folds, data, CellKind.REDUCER)
        case [int(folds), bytes(data), int(kind)] if type(kind) is int and kind in _WRITTEN:
            return StoredCell(folds, data, CellKind(kind))
        case _:
            raise errors.DecodeError("the row of a cell holds a count and bytes, and maybe its kind")


_WRITTEN = tuple(each for each in CellKind if each is not CellKind.REDUCER)  # one form for each meaning
