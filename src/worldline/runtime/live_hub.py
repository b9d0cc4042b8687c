"""Live events inside one process: subscribers are told of entries that have been committed.

Entries are published only after their commit, in order, world by world. A caller that waits for one entry (an answer, a
run's end) asks *before* it sends, so nothing can slip through; a follower gets everything from its subscription on, and
is told when it was too slow (`None` in its queue). A caller that waits for a run's end is told if the world goes back
to an older state, too: the run may be gone then. Chunks that effects stream are passed along here and nowhere kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from worldline.base import errors
from worldline.model import ids, journal
from worldline.model.journal import Kind

FOLLOWER_QUEUE_MAX = 10_000

Waiting = dict[tuple[Kind, str], list[asyncio.Future[journal.JournalEntry]]]


class Chunk(msgspec.Struct, frozen=True):
    """A piece of what an effect streams: seen by followers, in no journal."""

    intent: ids.IntentId
    name: str
    run: str
    attempt: int
    value: Any


Live = journal.JournalEntry | Chunk | None


class RunHalted(Exception):
    """A run that a caller waits for, or one that it waits for, waits for a person."""


class Expecting:
    """Around the waiting for an entry. Written out: every answer is waited for this way."""

    __slots__ = ("_at", "_everywhere", "_future", "_key")

    def __init__(self, everywhere: dict[ids.Address, Waiting], at: ids.Address, key: tuple[Kind, str]) -> None:
        self._everywhere = everywhere
        self._at = at
        self._key = key
        self._future: asyncio.Future[journal.JournalEntry] = asyncio.get_running_loop().create_future()

    def __enter__(self) -> asyncio.Future[journal.JournalEntry]:
        self._everywhere.setdefault(self._at, {}).setdefault(self._key, []).append(self._future)
        return self._future

    def __exit__(self, *_: object) -> None:
        future, waiting = self._future, self._everywhere.get(self._at, {})
        futures = waiting.get(self._key, [])
        if future in futures:
            futures.remove(future)
            if not futures:
                del waiting[self._key]
            if not waiting:
                del self._everywhere[self._at]
        if not future.cancel() and not future.cancelled():
            future.exception()  # the caller has stopped waiting: mark it as retrieved


class Hub:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._expected: dict[ids.Address, Waiting] = {}
        self._followers: dict[ids.Address, list[asyncio.Queue[Live]]] = {}

    def expecting(self, at: ids.Address, kind: Kind, correlation: str) -> Expecting:
        """The next entry of this kind with this correlation, as a future; for the end of a run, or that the world goes
        back (`ends_wait`). `Fenced` if the world moves before.
        """
        return Expecting(self._expected, at, (kind, correlation))

    @contextmanager
    def following(self, at: ids.Address) -> Iterator[asyncio.Queue[Live]]:
        queue: asyncio.Queue[Live] = asyncio.Queue()
        self._followers.setdefault(at, []).append(queue)
        try:
            yield queue
        finally:
            followers = self._followers[at]
            followers.remove(queue)
            if not followers:
                del self._followers[at]

    def publish(self, at: ids.Address, entries: Sequence[journal.JournalEntry]) -> None:
        # After every commit, and mostly nothing waits.
        if not self._expected and not self._followers:
            return
        waiting = self._expected.get(at)
        if waiting is not None:
            for entry in entries:
                if entry.correlation:
                    # Removed with the first: callers ask for the next entry alone.
                    for future in waiting.pop((entry.kind, entry.correlation), ()):
                        if not future.done():
                            future.set_result(entry)
                elif entry.kind is Kind.REVERTED:
                    _went_back(waiting, entry)
            if not waiting:
                del self._expected[at]
        for queue in self._followers.get(at, ()):
            for entry in entries:
                _offer(queue, entry)

    def halted(self, at: ids.Address, runs: Iterable[str]) -> None:
        """These runs wait for a person. Callers that wait for their ends have to look at them."""
        waiting = self._expected.get(at)
        if waiting is None:
            return
        for run in runs:
            for future in waiting.pop((Kind.RUN_FINISHED, run), ()):
                if not future.done():
                    future.set_exception(RunHalted(run))
        if not waiting:
            del self._expected[at]

    def moved(self, at: ids.Address) -> None:
        """The world came here, or left. Callers that wait for an entry of it have to look into its journal: what was
        written elsewhere is not told here.
        """
        for futures in self._expected.pop(at, {}).values():
            for future in futures:
                if not future.done():
                    future.set_exception(errors.Fenced(f"world {at.world.hex()} came to this process, or left it"))

    def stream(self, at: ids.Address, chunk: Chunk) -> None:
        for queue in self._followers.get(at, ()):
            _offer(queue, chunk)

    def stream_from_thread(self, at: ids.Address, chunk: Chunk) -> None:
        """The same from a thread. What the thread does next on the loop comes after it."""
        self._loop.call_soon_threadsafe(self.stream, at, chunk)


def ends_wait(entry: journal.JournalEntry, kind: Kind, correlation: str) -> bool:
    """Whether a caller that waits for an entry of this kind and correlation has to be told of this one."""
    if entry.kind is Kind.REVERTED and kind is Kind.RUN_FINISHED:
        return True
    return entry.kind is kind and entry.correlation == correlation


def _went_back(waiting: Waiting, entry: journal.JournalEntry) -> None:
    for key in [each for each in waiting if ends_wait(entry, *each)]:
        for future in waiting.pop(key):
            if not future.done():
                future.set_result(entry)


def _offer(queue: asyncio.Queue[Live], what: Live) -> None:
    """A follower that does not keep up loses the backlog, and is told so by a gap, rather than taking all memory."""
    # All of it, not the oldest alone: a gap is told once, and the follower reads the journal from there.
    if queue.qsize() >= FOLLOWER_QUEUE_MAX:
        while not queue.empty():
            queue.get_nowait()
        queue.put_nowait(None)
    queue.put_nowait(what)
