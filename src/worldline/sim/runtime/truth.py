"""The store itself, as the simulation keeps it: one memory engine, a plain copy beside it, and a trace of everything.

`Truth` applies one batch at a time and tells the auditors. Its clock is the only one that decides what is due; it may
be made to jump. The trace is a rolling hash over every read and commit with its virtual time, host and task.

A transaction that is open has its version already, and is applied under it when it commits: so what it appends appears
below what others have appended meanwhile, as on a server. While it is open, `stable` is no higher than its version.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence

import msgspec

from worldline.codec import digest
from worldline.sim.runtime.sim_env import SimEnv
from worldline.sim.runtime.sim_loop import SimLoop, SimMachine
from worldline.store import kv


class AppliedBatch(msgspec.Struct, frozen=True):
    """One batch that was applied: when on the store's clock, by which host, and what its keys held before."""

    number: int
    time_us: int
    host: SimMachine
    batch: kv.Batch
    stamps: tuple[kv.Stamp, ...]
    before: dict[bytes, bytes | None]
    now_us: int = 0  # in virtual time, where there is one
    latest_us: int = 0  # what the store's clock has shown at most so far; it may have been set back since


class SimTrace:
    """A rolling hash over what happened, and the first of it in words."""

    def __init__(self, loop: SimLoop, *, keep: int = 0) -> None:
        self._loop = loop
        self._hash = hashlib.sha256()
        self._keep = keep  # so many lines in words
        self.events = 0
        self.lines: list[str] = []

    def note(self, host: SimMachine, op: str, *parts: bytes) -> None:
        task = asyncio.current_task(self._loop)
        head = f"{self._loop.now_us} {host.label} {'-' if task is None else task.get_name()} {op}"
        self._hash.update(head.encode())
        for part in parts:
            # With its length: parts that are divided otherwise must not hash alike.
            self._hash.update(len(part).to_bytes(4, "big") + part)
        self.events += 1
        # The first ones: two runs that should be the same are compared up to where they differ.
        if len(self.lines) < self._keep:
            self.lines.append(f"{head} {digest.sha256(b'|'.join(parts)).hex()[:16]}")

    @property
    def now_us(self) -> int:
        """Virtual time."""
        return self._loop.now_us

    def hex(self) -> str:
        return self._hash.hexdigest()


class Truth:
    """The store itself: applies one batch at a time, keeps a plain copy beside it, and tells the auditors."""

    def __init__(
        self, engine: kv.Engine, env: SimEnv, trace: SimTrace, *, audit: Sequence[Callable[[AppliedBatch], None]] = ()
    ) -> None:
        self.engine = engine
        self.trace = trace
        self.copy: dict[bytes, bytes] = {}
        self.audit = list(audit)
        self.commits = 0
        self._env = env
        self._latest_us = 0
        self.was_set: list[tuple[int, int]] = []  # how far the clock had been set forward, until which virtual time
        self._open: dict[int, SimMachine] = {}  # transactions by version, with the host that each ends with

    def time_us(self) -> int:
        return self._env.wall_us()

    @property
    def skew_us(self) -> int:
        """How far the store's clock has been set forward, all in all."""
        return self._env.skew_us

    def jump(self, seconds: float) -> None:
        """The store's clock is set forward or back."""
        # Before it is set back: this is the latest that anything can have seen.
        self._latest_us = max(self._latest_us, self.time_us())
        self.was_set.append((self.skew_us, self.trace.now_us))
        self._env.jump(int(seconds * 1_000_000))

    async def read(self, host: SimMachine, *requests: kv.Request, held_back: bool = True) -> kv.ReadResult:
        keys = [each.key if isinstance(each, kv.Get) else each.begin for each in requests]
        self.trace.note(host, "read", *keys)
        found = await self.engine.read(*requests)
        # A guard that may be off: without it, readers see above what is still open.
        oldest = self._oldest() if held_back else None
        return found if oldest is None else _held_back(found, kv.stamp(oldest, 0))

    def begin(self, host: SimMachine) -> int:
        """Open a transaction of this host. It ends by `commit`, by `abandon`, or with the host."""
        engine = vars(self.engine)
        engine["_version"] += 1
        self._open[engine["_version"]] = host
        return int(engine["_version"])

    def abandon(self, version: int) -> None:
        self._open.pop(version, None)

    def _oldest(self) -> int | None:
        """The version of the oldest transaction that is open."""
        # A transaction ends with its host, as a server's does with its connection.
        for version in [each for each, host in self._open.items() if not host.alive]:
            del self._open[version]
        return next(iter(self._open), None)

    def pretend(self) -> int:
        """Count a commit that is answered and never applied. Returns its number."""
        self.commits += 1
        return self.commits

    async def commit(self, host: SimMachine, batch: kv.Batch, *, version: int | None = None) -> kv.Outcome:
        """Apply a batch. `version`: of the transaction that it is the end of."""
        self.commits += 1
        self.trace.note(host, "commit", *_bytes_of(batch))
        if version is None:
            [outcome] = await self.engine.commit(batch)
        else:
            [outcome] = await self._commit_under(version, batch)
        self.trace.note(host, type(outcome).__name__)
        if isinstance(outcome, kv.Ok):
            touched = (*batch.puts, *batch.deletes)
            # From the copy, before it changes: the engine keeps no older value.
            before = {key: self.copy.get(key) for key in touched}
            self._apply(batch, outcome.stamps)
            applied = AppliedBatch(
                self.commits, self.time_us(), host, batch, outcome.stamps, before, self.trace.now_us, self._latest_us
            )
            for look in self.audit:
                look(applied)
        return outcome

    async def _commit_under(self, version: int, batch: kv.Batch) -> list[kv.Outcome]:
        engine = vars(self.engine)
        newest = engine["_version"]
        # The memory engine numbers commits in order; an open transaction has its number from when it was begun.
        engine["_version"] = version - 1
        try:
            return await self.engine.commit(batch)
        finally:
            engine["_version"] = newest
            self.abandon(version)

    def _apply(self, batch: kv.Batch, stamps: tuple[kv.Stamp, ...]) -> None:
        """The same once more, as simply as can be: at the end both must hold the same (K1)."""
        # Ranges first, as the engine does: a batch may put below a range that it clears.
        for begin, end in batch.ranges:
            self.copy = {key: value for key, value in self.copy.items() if not begin <= key < end}
        for key in batch.deletes:
            self.copy.pop(key, None)
        for put in batch.puts.values():
            self.copy[put.key] = put.value if put.stamp is None else put.value + stamps[put.stamp]
        for append, stamp in zip(batch.appends, stamps, strict=True):
            self.copy[append.prefix + stamp] = append.value
        for key, delta in batch.counts.items():
            self.copy[key] = kv.counter_add(self.copy.get(key), delta)


def _held_back(read: kv.ReadResult, stable: kv.Stamp) -> kv.ReadResult:
    answers = [kv.Page(each.items, each.more, stable) if isinstance(each, kv.Page) else each for each in read.answers]
    return msgspec.structs.replace(read, answers=answers)


def _bytes_of(batch: kv.Batch) -> list[bytes]:
    parts = [key + (b"" if value is None else value) for key, value in batch.expects.items()]
    parts += [begin + end for begin, end in batch.ranges]
    parts += list(batch.deletes)
    parts += [put.key + put.value for put in batch.puts.values()]
    parts += [key + delta.to_bytes(8, "big", signed=True) for key, delta in batch.counts.items()]
    return parts + [append.prefix + append.value for append in batch.appends]
