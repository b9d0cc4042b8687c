"""Live events inside one process: who is told when an entry has been committed.

Entries are published only after their commit, in order, world by world. A caller that waits for one entry (an answer, a
run's end) asks *before* it sends, so nothing can slip through; a follower gets everything from its subscription on, and
is told when it was too slow (`None` in its queue). Chunks that effects stream are passed along here and nowhere kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from worldline.model import ids, journal
from worldline.model.journal import Kind

FOLLOWER_QUEUE_MAX = 10_000

Key = tuple[ids.Address, Kind, str]


class Chunk(msgspec.Struct, frozen=True):
    """A piece of what an effect streams: seen by followers, in no journal."""

    intent: ids.IntentId
    name: str
    run: str
    attempt: int
    value: Any


Live = journal.Entry | Chunk | None


class Hub:
    def __init__(self) -> None:
        self._expected: dict[Key, list[asyncio.Future[journal.Entry]]] = {}
        self._followers: dict[ids.Address, list[asyncio.Queue[Live]]] = {}

    @contextmanager
    def expecting(self, at: ids.Address, kind: Kind, correlation: str) -> Iterator[asyncio.Future[journal.Entry]]:
        """The next entry of this kind with this correlation, as a future."""
        future: asyncio.Future[journal.Entry] = asyncio.get_running_loop().create_future()
        key = (at, kind, correlation)
        self._expected.setdefault(key, []).append(future)
        try:
            yield future
        finally:
            waiting = self._expected.get(key, [])
            if future in waiting:
                waiting.remove(future)
            if not waiting:
                self._expected.pop(key, None)
            future.cancel()

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

    def publish(self, at: ids.Address, entries: Sequence[journal.Entry]) -> None:
        if self._expected:
            for entry in entries:
                if entry.correlation:
                    for future in self._expected.pop((at, entry.kind, entry.correlation), ()):
                        if not future.done():
                            future.set_result(entry)
        for queue in self._followers.get(at, ()):
            for entry in entries:
                _offer(queue, entry)

    def stream(self, at: ids.Address, chunk: Chunk) -> None:
        for queue in self._followers.get(at, ()):
            _offer(queue, chunk)


def _offer(queue: asyncio.Queue[Live], what: Live) -> None:
    """A follower that does not keep up loses the backlog, and is told so by a gap, rather than taking all memory."""
    if queue.qsize() >= FOLLOWER_QUEUE_MAX:
        while not queue.empty():
            queue.get_nowait()
        queue.put_nowait(None)
    queue.put_nowait(what)
