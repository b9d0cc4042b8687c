"""Which batches share a statement, and how a group of them is written down for it.

Batches wait in one queue, first come first served. A group is the longest run of waiting batches that do not *meet*:
none writes what another writes or expects. Expecting the same unwritten key is no meeting. A batch that meets one under
way, or one that waits before it, stays where it is and the ones behind it may pass; so nobody is overtaken by what it
meets, nobody starves, and batches that meet are decided in the order in which they came.

`encode` makes the arguments of `sql.COMMIT_PARAMETERS` from a group, `decode` the outcomes from its row.
"""

from __future__ import annotations

import asyncio
import bisect
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from worldline.base import errors, limits
from worldline.store import kv
from worldline.store.postgres import sql

Answer = kv.Outcome | errors.Error


class Entry:
    """A waiting batch: what it touches, and where its answer goes."""

    __slots__ = ("answer", "appended", "batch", "expected", "ranges", "size", "written")

    def __init__(self, batch: kv.Batch, answer: asyncio.Future[Answer]) -> None:
        self.batch = batch
        self.answer = answer
        self.ranges = _merged(batch.ranges)
        self.written = [*batch.puts, *batch.deletes, *batch.counts]
        self.appended = dict.fromkeys([append.prefix for append in batch.appends])
        self.expected = [key for key in batch.expects if not self._writes(key)]
        self.size = _size(batch)

    def resolve(self, answer: Answer) -> None:
        """Answer the caller, unless he went away."""
        if not self.answer.done():
            self.answer.set_result(answer)

    def _writes(self, key: bytes) -> bool:
        batch = self.batch
        return key in batch.puts or key in batch.deletes or key in batch.counts or _inside(key, self.ranges)


class Claims:
    """The keys that some batches touch.

    A batch may be removed again if those that were added did not meet: then no two of them wrote the same key, and
    only what they share is counted.
    """

    def __init__(self) -> None:
        self._written: dict[bytes, None] = {}
        self._ranges: dict[tuple[bytes, bytes], None] = {}
        self._expected: dict[bytes, int] = {}
        self._appended: dict[bytes, int] = {}

    def add(self, entry: Entry) -> None:
        self._written.update(dict.fromkeys(entry.written))
        self._ranges.update(dict.fromkeys(entry.ranges))
        _count(self._expected, entry.expected)
        _count(self._appended, entry.appended)

    def remove(self, entry: Entry) -> None:
        for key in entry.written:
            del self._written[key]
        for bounds in entry.ranges:
            del self._ranges[bounds]
        _discount(self._expected, entry.expected)
        _discount(self._appended, entry.appended)

    def meet(self, entry: Entry) -> bool:
        written = self._written.keys()
        if not written.isdisjoint(entry.written) or not written.isdisjoint(entry.expected):
            return True
        if not self._expected.keys().isdisjoint(entry.written):
            return True
        return bool(self._ranges or entry.ranges) and self._meet_ranges(entry)

    def _meet_ranges(self, entry: Entry) -> bool:
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


class Queue:
    """The batches that wait, and what those under way touch."""

    def __init__(self, *, batches_max: int, bytes_max: int, scan_max: int) -> None:
        self._waiting: deque[Entry] = deque()
        self._held = Claims()
        self._batches_max = batches_max
        self._bytes_max = bytes_max
        self._scan_max = scan_max

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, entries: Iterable[Entry]) -> None:
        self._waiting.extend(entries)

    def take(self) -> list[Entry]:
        """The next group; empty if everything that waits meets something under way. Give it back by `release`."""
        group: list[Entry] = []
        passed: list[Entry] = []
        before = Claims()
        size = 0
        for _ in range(min(len(self._waiting), self._scan_max)):
            entry = self._waiting[0]
            if group and (len(group) >= self._batches_max or size + entry.size > self._bytes_max):
                break
            self._waiting.popleft()
            if entry.answer.cancelled():
                continue
            if self._held.meet(entry) or (passed and before.meet(entry)):
                passed.append(entry)
                before.add(entry)
                continue
            self._held.add(entry)
            group.append(entry)
            size += entry.size
        self._waiting.extendleft(reversed(passed))
        return group

    def release(self, group: Iterable[Entry]) -> None:
        for entry in group:
            self._held.remove(entry)


def encode(base: int, group: Sequence[Entry]) -> list[Any]:
    """The arguments of the commit function, in its order."""
    expects: list[tuple[bytes, bytes | None, int]] = []
    inserts: list[tuple[bytes, bytes, int | None, int | None, int]] = []
    puts: list[tuple[bytes, bytes, int | None, int]] = []
    counts: list[tuple[bytes, bytes, int]] = []
    ranges: list[tuple[bytes, bytes, int]] = []
    ordinal = 0
    for index, entry in enumerate(group):
        batch = entry.batch
        expects += [(key, value, index) for key, value in batch.expects.items()]
        for put in batch.puts.values():
            stamp = None if put.stamp is None else ordinal + put.stamp
            if batch.expects.get(put.key, b"") is None:
                inserts.append((put.key, put.value, None, stamp, index))
            else:
                puts.append((put.key, put.value, stamp, index))
        counts += [(key, kv.counter_add(None, delta), index) for key, delta in batch.counts.items()]
        for append in batch.appends:
            inserts.append((append.prefix, append.value, ordinal, None, index))
            ordinal += 1
        ranges += [(begin, end, index) for begin, end in entry.ranges]
    inserts.sort(key=_first)
    puts.sort(key=_first)
    counts.sort(key=_first)
    keys, run_ends, run_kinds = _runs(group)
    arguments = [base, keys, run_ends, run_kinds, *_columns(expects, 3), *_columns(inserts, 5), *_columns(puts, 4)]
    arguments += [*_columns(counts, 3), *_columns(_deletes(group, keys), 3), *_columns(ranges, 3)]
    assert len(arguments) == len(sql.COMMIT_PARAMETERS)
    return arguments


def decode(group: Sequence[Entry], row: Iterable[Any]) -> list[Answer]:
    version, found_batches, found_keys, found_values, broken_batches, broken_keys = row
    answers: list[Answer] = []
    ordinal = 0
    for entry in group:
        count = len(entry.batch.appends)
        answers.append(kv.Ok(tuple(kv.stamp(version, ordinal + index) for index in range(count))))
        ordinal += count
    for index, key in zip(broken_batches or (), broken_keys or (), strict=True):
        answers[index] = errors.DecodeError(f"a batch adds to key {key.hex()}, which is not a counter of 8 bytes")
    if found_batches is not None:
        found: dict[int, list[tuple[bytes, bytes | None]]] = {}
        for index, key, value in zip(found_batches, found_keys, found_values, strict=True):
            found.setdefault(index, []).append((key, value))
        for index, pairs in found.items():
            answers[index] = kv.Conflict(tuple(sorted(pairs, key=_first)))
    return answers


def _runs(group: Sequence[Entry]) -> tuple[list[bytes], list[int], list[int]]:
    """The keys to lock, in order, cut into runs of one kind.

    A key expected absent has no row, or the batch is lost anyway. The batches do not meet, so ranges overlap no other
    batch's keys; keys inside a batch's own range are locked with the range.
    """
    written: list[bytes] = []
    others: dict[bytes, bytes | None] = {}  # what cuts the written keys: expected ones, and ranges with their ends
    for entry in group:
        expects = entry.batch.expects
        if None in expects.values():
            written += [key for key in entry.written if expects.get(key, b"") is not None]
        else:
            written += entry.written
        others.update(dict.fromkeys(entry.expected))
        others.update(entry.ranges)
    written.sort()
    keys: list[bytes] = []
    run_ends: list[int] = []
    run_kinds: list[int] = []
    done = 0
    for key in sorted(others):
        place = bisect.bisect_left(written, key, done)
        if place > done:
            keys += written[done:place]
            run_ends.append(len(keys))
            run_kinds.append(sql.RUN_WRITE)
            done = place
        end = others[key]
        keys += [key] if end is None else [key, end]
        if end is None and run_kinds and run_kinds[-1] == sql.RUN_SHARE:
            run_ends[-1] = len(keys)
        else:
            run_ends.append(len(keys))
            run_kinds.append(sql.RUN_SHARE if end is None else sql.RUN_RANGE)
    if done < len(written):
        keys += written[done:]
        run_ends.append(len(keys))
        run_kinds.append(sql.RUN_WRITE)
    return keys, run_ends, run_kinds


def _deletes(group: Sequence[Entry], keys: list[bytes]) -> list[tuple[int, int, int]]:
    """The deleted keys as parts of the locked ones: first and last place, counted from 1, and the batch."""
    parts: list[tuple[int, int, int]] = []
    for index, entry in enumerate(group):
        deletes = sorted(entry.batch.deletes)
        done = 0
        while done < len(deletes):
            first = bisect.bisect_left(keys, deletes[done])
            assert keys[first] == deletes[done], "what is deleted is locked"
            count = len(deletes) - done
            if keys[first : first + count] != deletes[done:]:
                count = next(n for n in range(1, count) if keys[first + n : first + n + 1] != [deletes[done + n]])
            parts.append((first + 1, first + count, index))
            done += count
    return parts


def _columns(rows: list[tuple[Any, ...]] | list[Any], width: int) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]


def _first(row: tuple[Any, ...]) -> Any:
    return row[0]


def _size(batch: kv.Batch) -> int:
    """About what the statement carries for it."""
    keys = sum(map(len, [*batch.expects, *batch.puts, *batch.deletes, *batch.counts]))
    values = sum([len(value) for value in batch.expects.values() if value is not None])
    values += sum([len(put.value) for put in batch.puts.values()])
    appends = sum([len(append.prefix) + len(append.value) for append in batch.appends])
    return keys + values + appends + limits.COUNTER_BYTES * len(batch.counts)


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
