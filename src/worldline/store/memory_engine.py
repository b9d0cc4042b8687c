"""The reference engine: a dict and a sorted list of keys in one process.

This file is the specification of the others, so it is written to be read: commits are applied one batch at a time, in
the order given, and a stamp is (version, ordinal) with one version for each `commit` call. Nothing is durable, and
`durability` says so. The simulator and most unit tests run on it.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from worldline.base import env as envs
from worldline.base import errors
from worldline.store import hints, kv


class MemoryEngine:
    def __init__(self, env: envs.Env) -> None:
        self._env = env
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self._version = 0
        self._appended = 1  # changes with every append
        self.hints = hints.HintBoard()
        self._closed = False

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        self._check_open()
        kv.check_requests(requests)
        stable = kv.stamp(self._version + 1, 0)
        answers: list[bytes | kv.Page | None] = []
        for request in requests:
            if isinstance(request, kv.Get):
                answers.append(self._values.get(request.key))
            else:
                answers.append(self._page(request, stable))
        return kv.ReadResult(answers, self._env.wall_us(), self.hints.seen, self._appended)

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        self._check_open()
        for batch in batches:
            kv.check(batch)
        # One version for each call, also if every batch conflicts: stamps must be in order, not dense.
        self._version += 1
        outcomes: list[kv.Outcome] = []
        ordinal = 0
        for batch in batches:
            conflict = kv.conflict(batch, self._values.get)
            if conflict is not None:
                outcomes.append(conflict)
                continue
            outcomes.append(kv.Ok(self._apply(batch, ordinal)))
            ordinal += len(batch.appends)
            self.hints.note(hints.written(batch))
        return outcomes

    async def wait(self, prefix: bytes, seen: int, timeout_ms: int) -> bool:
        self._check_open()
        return await self.hints.wait(prefix, seen, timeout_ms)

    async def freeze(self) -> kv.Frozen:
        self._check_open()
        frozen = MemoryEngine(self._env)
        frozen._values, frozen._keys = dict(self._values), list(self._keys)
        frozen._version, frozen._appended = self._version, self._appended
        return frozen

    async def raise_stamps(self, above: kv.Stamp) -> None:
        self._check_open()
        self._version = max(self._version, kv.stamp_version(above))

    async def durability(self) -> kv.Durability:
        return kv.Durability(full=False, settings={"engine": "memory", "sync": "none"})

    async def close(self) -> None:
        self._closed = True
        # Wakes the callers of `wait`, which end when the engine closes.
        self.hints.note(None)

    def _apply(self, batch: kv.Batch, ordinal: int) -> tuple[kv.Stamp, ...]:
        stamps = tuple(kv.stamp(self._version, ordinal + index) for index in range(len(batch.appends)))
        for begin, end in batch.ranges:
            # A list first: removing keys moves the positions that are walked.
            for key in list(self._between(begin, end)):
                self._remove(key)
        for key in batch.deletes:
            self._remove(key)
        for put in batch.puts.values():
            self._set(put.key, put.value if put.stamp is None else put.value + stamps[put.stamp])
        for key, delta in batch.counts.items():
            self._set(key, kv.counter_add(self._values.get(key), delta))
        for append, stamp in zip(batch.appends, stamps, strict=True):
            self._appended += 1
            self._set(append.prefix + stamp, append.value)
        return stamps

    def _page(self, request: kv.Range, stable: kv.Stamp) -> kv.Page:
        keys = self._between(request.begin, request.end, reverse=request.reverse)
        return kv.fill_page(((key, self._values[key]) for key in keys), request, stable)

    def _between(self, begin: bytes, end: bytes, *, reverse: bool = False) -> Iterator[bytes]:
        first = bisect.bisect_left(self._keys, begin)
        last = bisect.bisect_left(self._keys, end)
        positions = range(last - 1, first - 1, -1) if reverse else range(first, last)
        return (self._keys[position] for position in positions)

    def _set(self, key: bytes, value: bytes) -> None:
        if key not in self._values:
            bisect.insort(self._keys, key)
        self._values[key] = value

    def _remove(self, key: bytes) -> None:
        if self._values.pop(key, None) is not None:
            position = bisect.bisect_left(self._keys, key)
            assert self._keys[position] == key
            del self._keys[position]

    def _check_open(self) -> None:
        if self._closed:
            raise errors.StoreUnavailable("this store is closed")
