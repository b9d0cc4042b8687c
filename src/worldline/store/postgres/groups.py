"""Which batches share a statement, and how a group of them is written down for it.

Batches wait in one queue, first come first served. A group is the longest run of waiting batches that do not *meet*:
none writes what another writes or expects. Expecting the same unwritten key is no meeting. A batch that meets one under
way, or one that waits before it, stays where it is and the ones behind it may pass; so no batch is overtaken by one it
meets, none starves, and batches that meet are decided in the order in which they came.

`encode` makes the arguments of `sql.COMMIT_PARAMETERS` from a group, `decode` the outcomes from its row.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from worldline.base import errors, limits
from worldline.store import kv
from worldline.store.postgres import sql

Answer = kv.Outcome | errors.Error
Run = tuple[int, list[bytes]]  # its kind and its keys

# Fewer deletes than this are not worth a run of their own.
BLOCK_MIN = 8
# The server walks through all keys to find a run, so there must not be many. Beyond this, what is only expected is
# locked like what is written, and deleted keys are named once more instead of as parts of the locked ones.
RUNS_MAX = 48
PARTS_MAX = 16


class KeyLocks(NamedTuple):
    """The keys to lock, in order, cut into runs of one kind; and the deletes of each batch that come after that."""

    keys: list[bytes]
    run_ends: list[int]
    run_kinds: list[int]
    deletes: list[tuple[int, list[bytes]]]


class WaitingBatch:
    """A waiting batch: what it touches, and where its answer goes."""

    __slots__ = ("answer", "batch", "expected", "ranges")

    def __init__(self, batch: kv.Batch, answer: asyncio.Future[Answer]) -> None:
        self.batch = batch
        self.answer = answer
        self.ranges = _merged(batch.ranges) if batch.ranges else []
        self.expected = [key for key in batch.expects if not self._writes(key)]

    @property
    def written(self) -> list[bytes]:
        batch = self.batch
        return [*batch.puts, *batch.deletes, *batch.counts]

    @property
    def appended(self) -> dict[bytes, None]:
        return dict.fromkeys([append.prefix for append in self.batch.appends])

    @property
    def size(self) -> int:
        """About how many bytes the statement carries for it."""
        batch = self.batch
        keys = sum(map(len, [*batch.expects, *self.written]))
        values = sum([len(value) for value in batch.expects.values() if value is not None])
        values += sum([len(put.value) for put in batch.puts.values()])
        appends = sum([len(append.prefix) + len(append.value) for append in batch.appends])
        return keys + values + appends + limits.COUNTER_BYTES * len(batch.counts)

    def resolve(self, answer: Answer) -> None:
        """Answer the caller, unless it has gone away."""
        if not self.answer.done():
            self.answer.set_result(answer)

    def _writes(self, key: bytes) -> bool:
        batch = self.batch
        if key in batch.puts or key in batch.deletes or key in batch.counts:
            return True
        return bool(self.ranges) and _inside(key, self.ranges)


class TouchedKeys:
    """The keys that some batches touch.

    A batch may be removed again if those that were added did not meet: then no two of them wrote the same key, and
    only what they share is counted.
    """

    def __init__(self, entries: Iterable[WaitingBatch]) -> None:
        self._written: dict[bytes, None] = {}
        self._ranges: dict[tuple[bytes, bytes], None] = {}
        self._expected: dict[bytes, int] = {}
        self._appended: dict[bytes, int] = {}
        for entry in entries:
            self.add(entry)

    def add(self, entry: WaitingBatch) -> None:
        self._written.update(dict.fromkeys(entry.written))
        self._ranges.update(dict.fromkeys(entry.ranges))
        _count(self._expected, entry.expected)
        _count(self._appended, entry.appended)

    def remove(self, entry: WaitingBatch) -> None:
        for key in entry.written:
            del self._written[key]
        for bounds in entry.ranges:
            del self._ranges[bounds]
        _discount(self._expected, entry.expected)
        _discount(self._appended, entry.appended)

    def meet(self, entry: WaitingBatch) -> bool:
        written = self._written.keys()
        if not written.isdisjoint(entry.written) or not written.isdisjoint(entry.expected):
            return True
        if not self._expected.keys().isdisjoint(entry.written):
            return True
        return bool(self._ranges or entry.ranges) and self._meet_ranges(entry)

    def _meet_ranges(self, entry: WaitingBatch) -> bool:
        theirs = list(self._ranges)
        if any(_inside(key, theirs) for keys in (entry.written, entry.expected) for key in keys):
            return True
        if any(_inside(key, entry.ranges) for keys in (self._written, self._expected) for key in keys):
            return True
        if any(_appends_inside(prefix, theirs) for prefix in entry.appended):
            return True
        if any(_appends_inside(prefix, entry.ranges) for prefix in self._appended):
            return True
        return any(begin < last and first < end for begin, end in theirs for first, last in entry.ranges)


class BatchQueue:
    """The batches that wait, and those under way.

    What those under way touch is worked out only when another batch is there to be compared with it: a caller alone
    pays nothing for it.
    """

    def __init__(self, *, batches_max: int, bytes_max: int, scan_max: int) -> None:
        self._waiting: deque[WaitingBatch] = deque()
        self._under_way: dict[WaitingBatch, None] = {}
        self._claims: TouchedKeys | None = None
        self._batches_max = batches_max
        self._bytes_max = bytes_max
        self._scan_max = scan_max

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, entries: Iterable[WaitingBatch]) -> None:
        self._waiting.extend(entries)

    def take(self) -> list[WaitingBatch]:
        """The next group; empty if everything that waits meets something under way. Give it back by `release`."""
        if len(self._waiting) == 1 and not self._under_way:
            group = [entry for entry in self._waiting if not entry.answer.cancelled()]
            self._waiting.clear()
        else:
            group = self._take_compared()
        self._under_way.update(dict.fromkeys(group))
        return group

    def release(self, group: Iterable[WaitingBatch]) -> None:
        for entry in group:
            del self._under_way[entry]
            if self._claims is not None and self._under_way:
                self._claims.remove(entry)
        # Worked out again from nothing when two must be compared: what was counted so far is not needed.
        if not self._under_way:
            self._claims = None

    def _take_compared(self) -> list[WaitingBatch]:
        claims = self._claims = self._claims or TouchedKeys(self._under_way)
        group: list[WaitingBatch] = []
        passed: list[WaitingBatch] = []
        before = TouchedKeys([])
        size = 0
        # A bound: comparing everything that waits could cost more than the commits it saves.
        for _ in range(min(len(self._waiting), self._scan_max)):
            entry = self._waiting[0]
            entry_size = entry.size
            # The first one goes whatever its size is.
            if group and (len(group) >= self._batches_max or size + entry_size > self._bytes_max):
                break
            self._waiting.popleft()
            if entry.answer.cancelled():
                continue
            if claims.meet(entry) or (passed and before.meet(entry)):
                passed.append(entry)
                before.add(entry)
                continue
            claims.add(entry)
            group.append(entry)
            size += entry_size
        # Back to the front and in their order, so that none is overtaken by one that it meets.
        self._waiting.extendleft(reversed(passed))
        return group


def encode(base: int, group: Sequence[WaitingBatch], *, hasty: bool) -> list[Any]:
    """The arguments of the commit function, in its order. With `hasty`, long runs of deletes need not wait."""
    expect_keys: list[bytes] = []
    expect_values: list[bytes | None] = []
    expect_batches: list[int] = []
    inserts: list[tuple[bytes, bytes, int | None, int | None, int]] = []
    puts: list[tuple[bytes, bytes, int | None, int]] = []
    counts: list[tuple[bytes, bytes, int]] = []
    ranges: list[tuple[bytes, bytes, int]] = []
    ordinal = 0
    for index, entry in enumerate(group):
        batch = entry.batch
        expect_keys += batch.expects
        expect_values += batch.expects.values()
        expect_batches += [index] * len(batch.expects)
        for key, value, stamp in [(put.key, put.value, put.stamp) for put in batch.puts.values()]:
            place = None if stamp is None else ordinal + stamp
            # Expected absent: a plain insert, so that the unique index decides between two writers.
            if batch.expects.get(key, b"") is None:
                inserts.append((key, value, None, place, index))
            else:
                puts.append((key, value, place, index))
        for append in batch.appends:
            inserts.append((append.prefix, append.value, ordinal, None, index))
            ordinal += 1
        counts += [(key, kv.counter_add(None, delta), index) for key, delta in batch.counts.items()]
        ranges += [(begin, end, index) for begin, end in entry.ranges]
    locks = _locks(group, hasty=hasty)
    if len(locks.run_ends) > RUNS_MAX:
        locks = _locks(group, hasty=False, coarse=True)
    arguments = [base, locks.keys, locks.run_ends, locks.run_kinds, expect_keys, expect_values, expect_batches]
    arguments += [*_columns(inserts, 5), *_columns(puts, 4), *_columns(counts, 3)]
    arguments += [*_deletes(locks), *_columns(ranges, 3)]
    assert len(arguments) == len(sql.COMMIT_PARAMETERS)
    return arguments


def decode(group: Sequence[WaitingBatch], row: Iterable[Any]) -> list[Answer]:
    version, found_batches, found_keys, found_values = row
    answers: list[Answer] = []
    ordinal = 0
    for entry in group:
        count = len(entry.batch.appends)
        answers.append(kv.Ok(tuple(kv.stamp(version, ordinal + index) for index in range(count))))
        ordinal += count
    if found_batches is not None:
        found: dict[int, list[tuple[bytes, bytes | None]]] = {}
        for index, key, value in zip(found_batches, found_keys, found_values, strict=True):
            found.setdefault(index, []).append((key, value))
        for index, pairs in found.items():
            answers[index] = kv.Conflict(tuple(sorted(pairs, key=_first)))
    return answers


def _locks(group: Sequence[WaitingBatch], *, hasty: bool, coarse: bool = False) -> KeyLocks:
    """What to lock, and what of it to delete after that.

    A key expected absent has no row, or the batch is lost anyway. The batches do not meet, so ranges overlap no other
    batch's keys; keys inside a batch's own range are locked with the range.
    """
    written: list[bytes] = []
    between: dict[bytes, Run] = {}
    late: list[tuple[int, list[bytes]]] = []
    blocks: list[tuple[int, list[bytes]]] = []
    for index, entry in enumerate(group):
        batch = entry.batch
        expects = batch.expects
        between.update({begin: (sql.RUN_RANGE, [begin, end]) for begin, end in entry.ranges})
        if not coarse:
            between.update({key: (sql.RUN_SHARE, [key]) for key in entry.expected})
        written += [key for key in [*batch.puts, *batch.counts] if expects.get(key, b"") is not None]
        if batch.deletes:
            # Expectations are looked at behind the early deletes: what a batch expects must still be there then.
            many = hasty and len(batch.deletes) >= BLOCK_MIN and not any(key in batch.deletes for key in expects)
            (blocks if many else late).append((index, sorted(batch.deletes)))
    if coarse:
        written += dict.fromkeys([key for entry in group for key in entry.expected])
    written += [key for _, some in late for key in some]
    if blocks and _are_apart([some for _, some in blocks], sorted([*written, *between])):
        between.update({some[0]: (sql.RUN_DELETE, some) for _, some in blocks})
    else:
        late += blocks
        written += [key for _, some in blocks for key in some]
    return KeyLocks(*_runs(sorted(written), between), late)


def _are_apart(blocks: list[list[bytes]], others: list[bytes]) -> bool:
    """Whether nothing else that the group locks stands between the keys of a block. Both are sorted."""
    bounds = sorted([(block[0], block[-1]) for block in blocks])
    if any(first <= last for (_, last), (first, _) in itertools.pairwise(bounds)):
        return False
    return all(bisect.bisect_left(others, first) == bisect.bisect_left(others, last) for first, last in bounds)


def _runs(written: list[bytes], between: dict[bytes, Run]) -> tuple[list[bytes], list[int], list[int]]:
    """All keys in order, where each run ends among them, and its kind. `between` has runs by their first keys."""
    keys: list[bytes] = []
    ends: list[int] = []
    kinds: list[int] = []

    def add(kind: int, more: list[bytes]) -> None:
        keys.extend(more)
        if kinds and kinds[-1] == kind == sql.RUN_SHARE:
            ends[-1] = len(keys)
        else:
            ends.append(len(keys))
            kinds.append(kind)

    done = 0
    for first in sorted(between):
        place = bisect.bisect_left(written, first, done)
        if place > done:
            add(sql.RUN_WRITE, written[done:place])
        done = place
        add(*between[first])
    if done < len(written):
        add(sql.RUN_WRITE, written[done:])
    return keys, ends, kinds


def _deletes(locks: KeyLocks) -> list[list[Any] | None]:
    """What is deleted after the locks, with its batches: parts of the locked keys, or if these were many, keys."""
    parts = [(first, last, index) for index, some in locks.deletes for first, last in _parts(some, locks.keys)]
    if len(parts) <= PARTS_MAX:
        return [None, *_columns(parts, 3)]
    keys = [key for _, some in locks.deletes for key in some]
    return [keys, None, None, [index for index, some in locks.deletes for _ in some]]


def _parts(deletes: list[bytes], keys: list[bytes]) -> Iterator[tuple[int, int]]:
    """Where these keys stand among all, as first and last places, counted from 1."""
    done = 0
    while done < len(deletes):
        first = bisect.bisect_left(keys, deletes[done])
        assert keys[first] == deletes[done], "what is deleted is locked"
        count = len(deletes) - done
        if keys[first : first + count] != deletes[done:]:
            count = next(n for n in range(1, count) if keys[first + n : first + n + 1] != [deletes[done + n]])
        yield first + 1, first + count
        done += count


def _columns(rows: list[tuple[Any, ...]] | list[Any], width: int) -> list[list[Any] | None]:
    """One array for each column, in key order; nothing instead of empty ones, which is quicker to send and receive."""
    if not rows:
        return [None] * width
    rows.sort(key=_first)
    return [list(column) for column in zip(*rows, strict=True)]


def _first(row: tuple[Any, ...]) -> Any:
    return row[0]


def _merged(ranges: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The same keys by ranges that do not overlap."""
    merged: list[tuple[bytes, bytes]] = []
    for begin, end in sorted(ranges):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _inside(key: bytes, ranges: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(begin <= key < end for begin, end in ranges)


def _appends_inside(prefix: bytes, ranges: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a key of this prefix and any stamp may lie in a range."""
    last = prefix + b"\xff" * (limits.STAMP_BYTES + 1)
    return any(prefix < end and begin < last for begin, end in ranges)


def _count(counts: dict[bytes, int], keys: Iterable[bytes]) -> None:
    for key in keys:
        counts[key] = counts.get(key, 0) + 1


def _discount(counts: dict[bytes, int], keys: Iterable[bytes]) -> None:
    for key in keys:
        if counts[key] == 1:
            del counts[key]
        else:
            counts[key] -= 1
