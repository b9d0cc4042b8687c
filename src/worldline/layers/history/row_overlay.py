"""Rows as changes make them, over rows that stay as they are.

Two histories that begin at the same state are followed over one map of rows: each has an overlay with what it changed.
The cost is that of the changes. The rows below need not all be there from the start: of a group that is dropped, its
name is kept, so what comes to be known below it later is gone, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from worldline.model.change import Change, Row
from worldline.model.rows import Rows


class Base(Protocol):
    """Rows that are looked at, and not changed."""

    def get(self, key: bytes, /) -> Row | None: ...

    def under(self, group: bytes, /) -> list[tuple[bytes, Row]]: ...


class Overlay:
    __slots__ = ("_base", "_dropped", "_gone", "_lengths", "_put")

    def __init__(self, base: Base) -> None:
        self._base = base
        self._put = Rows()
        self._gone: dict[bytes, None] = {}  # keys that were taken away; some of them are back in `_put`
        self._dropped: dict[bytes, None] = {}  # groups that were, in the same way
        self._lengths: dict[int, None] = {}  # of their names

    def get(self, key: bytes) -> Row | None:
        row = self._put.get(key)
        return row if row is not None or self._is_gone(key) else self._base.get(key)

    def under(self, group: bytes) -> list[tuple[bytes, Row]]:
        """Every row whose key begins with these bytes, in the order of keys."""
        found: dict[bytes, Row] = {}
        # Rows below a dropped group are not read at all: what stands in `_put` is all there is.
        if not self._is_dropped(group):
            found = {key: row for key, row in self._base.under(group) if not self._is_gone(key)}
        found |= self._put.under(group)
        return sorted(found.items(), key=lambda each: each[0])

    def apply(self, changes: Iterable[Change]) -> None:
        """What one step changed, in the order of `worldline.model.change`."""
        for change in changes:
            row, key = change.row, change.key
            if row is not None:
                self._put.put(key, row)
            elif change.is_group:
                self._dropped[key] = None
                self._lengths[len(key)] = None
                # What this history put into the group before goes, too; what it puts there later stays.
                self._put.drop(key)
            else:
                self._gone[key] = None
                self._put.remove(key)

    @property
    def has_dropped(self) -> bool:
        """Whether a group was dropped: then `touched` looks at all rows of it below."""
        return bool(self._dropped)

    def named(self) -> list[bytes]:
        """The keys and groups that changes have named, in their order. Some may be as they were again; a row that was
        put and then dropped with its group is named by the group alone.
        """
        return sorted({**self._gone, **self._dropped, **dict.fromkeys(self._put.keys())})

    def touched(self) -> list[bytes]:
        """The keys of all rows that were put or taken away, in their order. Some may be as they were again."""
        found = {**self._gone, **dict.fromkeys(self._put.keys())}
        for group in self._dropped:
            found |= dict.fromkeys(key for key, _ in self._base.under(group))
        return sorted(found)

    def _is_gone(self, key: bytes) -> bool:
        return key in self._gone or self._is_dropped(key)

    def _is_dropped(self, key: bytes) -> bool:
        dropped = self._dropped
        # One lookup for each length of a name: groups may be many, their lengths are few.
        return bool(dropped) and any(key[:length] in dropped for length in self._lengths)
