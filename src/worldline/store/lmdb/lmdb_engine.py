"""The loop's side of the embedded engine: `kv.Engine` for one event loop, without LMDB.

It reads on the loop's thread through the process's `SharedFolder` store, hands commits to the writer thread and settles
them when its inbox rings, and keeps this loop's hints: those of its own process, those that datagrams bring, and a slow
look at the number of transactions, which notices any hint that was lost.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, cast

from worldline.base import env as envs
from worldline.base import errors, limits
from worldline.store import hints, kv
from worldline.store.lmdb import hint_sockets as lmdb_peers
from worldline.store.lmdb import lmdb_scrub
from worldline.store.lmdb import writer_thread as lmdb_writer

T = TypeVar("T")
Answers = list[bytes | kv.Page | None]
_TOO_FAST = "other processes grow the store faster than this one can follow; try again"


class SharedFolder(Protocol):
    """The folder as one process has it open; all its engines share it."""

    @property
    def writer(self) -> lmdb_writer.WriterThread: ...

    @property
    def scrub(self) -> lmdb_scrub.Scrub:
        """What of it runs on the writer thread."""

    def read(self, requests: Sequence[kv.Request], env: envs.Env) -> tuple[Answers, int, int] | None:
        """The answers, the store's time and version. None if the store has outgrown this process's map."""

    def freeze(self) -> ReadTransaction | None:
        """The store as it is now; None as above."""

    def raise_version(self, least: int) -> None:
        """Count on from there, if that is more than the version."""

    def last_txn(self) -> int: ...

    def durability(self) -> kv.Durability: ...

    def listen(self, env: envs.Env) -> lmdb_peers.Listener | None: ...

    def peers_changed(self) -> None: ...

    def release(self, listener: lmdb_peers.Listener | None) -> None:
        """One engine less. The last one closes the store."""


class ReadTransaction(Protocol):
    """One read transaction that stays open."""

    def read(self, requests: Sequence[kv.Request], env: envs.Env) -> tuple[Answers, int, int]: ...

    def close(self) -> None: ...


class FrozenLmdb:
    """`kv.Frozen`, on the loop that opened it."""

    def __init__(self, inner: ReadTransaction, env: envs.Env) -> None:
        self._inner = inner
        self._env = env

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        kv.check_requests(requests)
        answers, time_us, version = self._inner.read(requests, self._env)
        return kv.ReadResult(answers, time_us, 0, version)

    async def close(self) -> None:
        self._inner.close()


class LmdbEngine:
    def __init__(self, store: SharedFolder, env: envs.Env) -> None:
        self._store = store
        self._writer = store.writer
        self._env = env
        self._loop = asyncio.get_running_loop()
        self.hints = hints.HintBoard()
        self._inbox = lmdb_writer.LoopAnswers()
        self._in_flight = 0
        self._crowded = False
        self._ringing_soon = False
        self._drained: asyncio.Future[None] | None = None
        self._closing = False
        self._released = False
        self._waiters = 0
        self._poll: asyncio.TimerHandle | None = None
        self._txn_polled = store.last_txn()
        self._txns_noted = 0
        self._listener = store.listen(env)
        self._loop.add_reader(self._inbox.fileno(), self._on_inbox)
        if self._listener is not None:
            self._loop.add_reader(self._listener.fileno(), self._on_datagram)
        self._writer.add(self._inbox)

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        self._check_open()
        kv.check_requests(requests)
        for _ in range(limits.LMDB_REMAPS_MAX):
            # Before the snapshot: a hint that comes in between is looked at once too often, and never missed.
            seen = self.hints.seen
            found = self._store.read(requests, self._env)
            if found is not None:
                answers, time_us, version = found
                return kv.ReadResult(answers, time_us, seen, version)
            # A call without batches makes the writer thread begin a transaction, and so adopt the grown map.
            await self._submit((), 0)
        raise errors.StoreUnavailable(_TOO_FAST)

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        if self._closing:
            self._check_open()
        size = 0
        for batch in batches:
            size += kv.check(batch)
        if not batches:
            return []
        return await self._submit(batches, size)

    async def wait(self, prefix: bytes, seen: int, timeout_ms: int) -> bool:
        self._check_open()
        self._waiters += 1
        # Only while a caller waits: a store that no caller waits for costs nothing.
        if self._poll is None:
            self._poll_later()
        try:
            return await self.hints.wait(prefix, seen, timeout_ms)
        finally:
            self._waiters -= 1

    async def freeze(self) -> kv.Frozen:
        self._check_open()
        for _ in range(limits.LMDB_REMAPS_MAX):
            found = self._store.freeze()
            if found is not None:
                return FrozenLmdb(found, self._env)
            await self._submit((), 0)
        raise errors.StoreUnavailable(_TOO_FAST)

    async def raise_stamps(self, above: kv.Stamp) -> None:
        self._check_open()
        self._store.raise_version(kv.stamp_version(above))

    async def scrub(self) -> kv.Scrubbed:
        self._check_open()
        parts = self._store.scrub
        readers = await self._patiently(parts.begin)
        if readers is not None:
            return kv.Scrubbed(complete=False, held_by=readers.pids)
        start: bytes | None = b""
        while start is not None:
            start = await self._chore(functools.partial(parts.clear_gaps, start))
        before = await self._chore(parts.end_gaps)
        after: int | None = 0
        while after is not None:
            found = await self._patiently(functools.partial(parts.clear_free, before, after))
            if isinstance(found, lmdb_scrub.Readers):
                return kv.Scrubbed(complete=False, held_by=found.pids)
            after = found
        return kv.Scrubbed(complete=True)

    async def _patiently(self, chore: Callable[[], T]) -> T:
        """A reader that is in the way is most often done in a moment."""
        for _ in range(limits.LMDB_SCRUB_LOOKS - 1):
            found = await self._chore(chore)
            if not isinstance(found, lmdb_scrub.Readers):
                return found
        return await self._chore(chore)

    async def _chore(self, chore: Callable[[], T]) -> T:
        """Have the writer thread do it; then other processes, and what waits in this one, have their turn."""
        job = self._submit((), 0, chore)
        await job
        await self._env.sleep(limits.LMDB_SCRUB_REST_MS / 1000)
        return cast("T", job.found)

    async def durability(self) -> kv.Durability:
        self._check_open()
        return self._store.durability()

    async def close(self) -> None:
        self._closing = True
        while self._in_flight:
            if self._drained is None:
                self._drained = self._loop.create_future()
            # Several callers may wait for it: the one that is cancelled must not cancel it for the others.
            await asyncio.shield(self._drained)
        if not self._released:
            self._released = True
            self._release()

    def _submit(
        self, batches: tuple[kv.Batch, ...], size: int, chore: Callable[[], object] | None = None
    ) -> lmdb_writer.CommitCall:
        job = lmdb_writer.CommitCall(self._inbox, batches, size, self._loop, chore)
        self._in_flight += 1
        self._writer.put(job)
        if not self._writer.awake:
            if not self._crowded:
                self._writer.ring()
            elif not self._ringing_soon:
                # The last group had several callers, so they are likely to come together again. The writer is woken
                # when this turn of the loop is over; else it would begin a group with the first of them alone.
                self._ringing_soon = True
                self._loop.call_soon(self._ring)
        return job

    def _ring(self) -> None:
        self._ringing_soon = False
        if not self._released:
            self._writer.ring()

    def _on_inbox(self) -> None:
        arrived = self._inbox.hear()
        count = len(arrived)  # what comes while this runs has rung again, and waits for the next turn
        try:
            while count:
                count -= 1
                self._settle(*arrived.popleft())
        finally:
            # A task ended the loop from inside: what is left must not wait until something else arrives.
            if count:
                self._inbox.ring()
        if self._drained is not None and not self._in_flight:
            self._drained.set_result(None)
            self._drained = None

    def _settle(self, jobs: Sequence[lmdb_writer.CommitCall], txn: int | None, keys: list[bytes]) -> None:
        if txn is not None:
            self._note(txn, keys if len(keys) <= limits.HINT_LOCAL_KEYS_MAX else None)
        if not jobs:
            return
        self._crowded = len(jobs) > 1
        done = 0
        try:
            for job in jobs:
                done += 1
                job.settle()
        finally:
            self._in_flight -= done
            if done < len(jobs):
                # A task ended the loop, by an interrupt or exit. If it runs again, the others have their answers.
                self._inbox.deliver(jobs[done:], None, [])

    def _on_datagram(self) -> None:
        assert self._listener is not None
        for heard in self._listener.hear():
            if isinstance(heard, lmdb_peers.Heard):
                self._note(heard.txn, heard.keys)
            else:
                self._store.peers_changed()

    def _note(self, txn: int, keys: list[bytes] | None) -> None:
        # Hints of transactions that the last look has counted arrive late, and would hide a lost one.
        if txn > self._txn_polled:
            self._txns_noted += 1
        self.hints.note(keys)

    def _poll_later(self) -> None:
        self._poll = self._loop.call_later(limits.HINT_POLL_MS / 1000, self._look)

    def _look(self) -> None:
        """While a caller waits: were there more transactions than hints? Then a hint was lost."""
        self._poll = None
        if self._waiters and not self._closing:
            last = self._store.last_txn()
            if last - self._txn_polled > self._txns_noted:
                self.hints.note(None)
            self._txn_polled, self._txns_noted = last, 0
            self._poll_later()

    def _release(self) -> None:
        # First: after this, the thread rings no bell of this engine.
        self._writer.remove(self._inbox)
        self._loop.remove_reader(self._inbox.fileno())
        self._inbox.close()
        if self._listener is not None:
            self._loop.remove_reader(self._listener.fileno())
        if self._poll is not None:
            self._poll.cancel()
        self.hints.note(None)
        self._store.release(self._listener)

    def _check_open(self) -> None:
        if self._closing:
            raise errors.StoreUnavailable("this store is closed")
