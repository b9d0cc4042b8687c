"""Which rows a step changes.

Whatever changes a record of the state notes its row here; when the step ends, each noted row is written out once, as it
is then. A row that came and went within the step leaves no trace. Nothing here knows what the rows mean.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from worldline.codec.canonical import encode_flat
from worldline.model import change
from worldline.model import row_keys as keys
from worldline.model.change import DELTA_BYTES_MIN, NO_SLOT, SHORT_BYTES_MAX, SLOT_BYTES_MIN, Change, Row

_KEY = operator.attrgetter("key")

# A row as fields: of its meaning (or as bytes, if it is always the same), of its placement, and the payload among the
# former that an entry may have, too.
Written: TypeAlias = tuple[list[Any] | bytes, list[Any], bytes]
Write: TypeAlias = Callable[[], Written]


class Group:
    """Rows that can be dropped together; they are noted by what stands behind the group's key."""

    __slots__ = ("_changed", "_dropped", "_is_new", "_ledger", "prefix")

    def __init__(self, ledger: RowLedger, prefix: bytes, *, is_new: bool = False) -> None:
        self.prefix = prefix
        self._ledger = ledger
        self._changed: dict[bytes, tuple[Write | None, bool, bytes | None]] = {}
        self._dropped = False
        self._is_new = is_new  # it has no rows from before this step
        if is_new:
            ledger.note(self)

    def put(self, key: bytes, write: Write, *, is_new: bool = False, base: bytes | None = None) -> None:
        """Note that a row has changed. `is_new`: there was none under this key. `base`: its meaning before."""
        changed = self._changed
        if not changed:
            self._ledger.note(self)
        known = changed.get(key)
        if known is None:
            changed[key] = write, is_new or self._is_new or self._dropped, base
        # Whether it is new, and what it was before, is what the first note said: both are about the time before the
        # step.
        else:
            changed[key] = write, known[1], known[2]

    def gone(self, key: bytes) -> None:
        if not self._changed:
            self._ledger.note(self)
        # It came within the step, so it leaves nothing.
        known = self._changed.get(key)
        if known is not None and known[1]:
            del self._changed[key]
        # Of a new group, or one that is dropped, no row was written before.
        elif not (self._is_new or self._dropped):
            self._changed[key] = None, False, None

    def drop(self) -> None:
        """Note that all its rows are gone."""
        self._changed.clear()
        self._ledger.note(self)
        # A group that is new in this step has no rows to drop.
        self._dropped = self._dropped or not self._is_new

    def collect(self, drops: list[Change], rows: list[Change]) -> None:
        """Say what the step has changed, and begin the next with nothing noted."""
        prefix = self.prefix
        if self._dropped:
            drops.append(change.drop(prefix))
        for key, (write, _, base) in self._changed.items():
            if write is None:
                rows.append(Change(prefix + key, None))
                continue
            meaning, placement, payload = write()
            data = meaning if type(meaning) is bytes else encode_flat(meaning)
            row = Row(data, encode_flat(placement)) if placement else Row(data)
            if len(data) <= SHORT_BYTES_MAX:  # as nearly all are: a reference would not be much shorter
                rows.append(Change(prefix + key, row))
            else:
                is_large = base is not None and len(base) > DELTA_BYTES_MIN
                slot = _slot(data, payload)
                rows.append(change.put(prefix + key, row, slot=slot, base=base if is_large else None))
        self._changed = {}
        self._dropped = self._is_new = False


class RowLedger:
    """The changes of one world's rows in the current step."""

    __slots__ = ("_groups", "top")

    def __init__(self) -> None:
        self._groups: dict[Group, None] = {}  # by identity: one that is gone and a new one may have equal keys
        self.top = Group(self, b"")  # rows that belong to no other group

    def note(self, group: Group) -> None:
        self._groups[group] = None

    def collect(self) -> list[Change]:
        """What this step has changed, in the order of `worldline.model.change`."""
        if not self._groups:
            return []
        drops: list[Change] = []
        rows: list[Change] = []
        for group in self._groups:
            group.collect(drops, rows)
        self._groups.clear()
        if len(rows) > 1:
            rows.sort(key=_KEY)
        if len(drops) > 1:
            drops.sort(key=_KEY)
        return drops + rows if drops else rows


def row_of(written: Written) -> Row:
    """A row's bytes."""
    meaning, placement, _ = written
    data = meaning if type(meaning) is bytes else encode_flat(meaning)
    return Row(data, encode_flat(placement) if placement else b"")


def _slot(data: bytes, payload: bytes) -> tuple[int, int]:
    """Where in a row's meaning the payload stands."""
    if len(payload) < SLOT_BYTES_MIN:
        return NO_SLOT
    # Where the same bytes stand more than once, any of the places will do.
    start = data.find(payload)
    return start, start + len(payload)


class Writable(Protocol):
    def write(self) -> Written: ...


T = TypeVar("T", bound=Writable)


class RecordQueue(Generic[T]):
    """Records in the order in which they came, each under a number of its own: one more than the last one's, from 0 if
    there is none. So the numbers depend on what is there alone.
    """

    __slots__ = ("_group", "_tag", "items")

    def __init__(self, group: Group | None = None, tag: bytes = b"") -> None:
        # To be looked at: whether there are any is asked in every step. Most queues never have any, above all those of
        # runs that have ended, and an empty deque takes 600 bytes.
        self.items: deque[tuple[int, T]] | tuple[()] = ()
        self._group = group
        self._tag = tag

    def bind(self, group: Group, tag: bytes) -> None:
        """From here on changes are noted, behind this letter."""
        self._group = group
        self._tag = tag

    def load(self, number: int, item: T) -> None:
        """One that was written before. They are loaded in order."""
        self._made().append((number, item))

    def append(self, item: T) -> None:
        items = self._made()
        number = items[-1][0] + 1 if items else 0
        items.append((number, item))
        if self._group is not None:
            self._group.put(self._tag + keys.number(number), item.write, is_new=True)

    def extend(self, items: Iterable[T]) -> None:
        for item in items:
            self.append(item)

    def popleft(self) -> T:
        number, item = self._made().popleft()
        self._gone(number)
        return item

    def remove_at(self, index: int) -> None:
        items = self._made()
        number = items[index][0]
        del items[index]
        self._gone(number)

    def remove(self, item: T) -> None:
        """Remove the first record that is equal to this one."""
        self.remove_at(next(index for index, each in enumerate(self) if each == item))

    def keep(self, choose: Callable[[T], T | None]) -> None:
        """Replace each record by what `choose` says; None removes it."""
        kept: deque[tuple[int, T]] = deque()
        for number, item in self.items:
            chosen = choose(item)
            if chosen is None:
                self._gone(number)
                continue
            kept.append((number, chosen))
            if chosen is not item and self._group is not None:
                self._group.put(self._tag + keys.number(number), chosen.write)
        self.items = kept

    def replace(self, items: Iterable[T]) -> None:
        """All are gone, and these are there."""
        kept = list(items)
        self.clear()
        self.extend(kept)

    def forget(self) -> None:
        """All are gone, with their group."""
        self.items = ()

    def clear(self) -> None:
        for number, _ in self.items:
            self._gone(number)
        self.items = ()

    def rows(self) -> Iterator[tuple[bytes, Write]]:
        """Yield every record, with its key behind the group's."""
        for number, item in self.items:
            yield self._tag + keys.number(number), item.write

    def _made(self) -> deque[tuple[int, T]]:
        items = self.items
        if isinstance(items, tuple):
            items = self.items = deque()
        return items

    def _gone(self, number: int) -> None:
        if self._group is not None:
            self._group.gone(self._tag + keys.number(number))

    def __iter__(self) -> Iterator[T]:
        return (item for _, item in self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> T:
        return self._made()[index][1]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RecordQueue):
            return list(self.items) == list(other.items)
        return isinstance(other, list) and list(self) == other

    def __hash__(self) -> int:
        raise TypeError("a queue changes")

    def __repr__(self) -> str:
        return f"Queue({list(self)!r})"
