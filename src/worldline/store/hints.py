"""Wake-up hints inside one process: which reader waits for which prefix, and what was written lately.

Every engine notes the keys its commits wrote, and those that other processes tell it. A reader remembers how many
hints it had noticed (`seen`) before its snapshot; `wait` first looks through the ring of later hints, so a write that
falls between the read and the wait is not missed. A ring that no longer reaches back to `seen` answers "maybe".

Nothing here is durable and nothing may rest on it: `wait` always has a timeout, and callers scan again after it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from typing import Protocol, runtime_checkable

from worldline.base import limits
from worldline.store import kv

FEW = 16


class HintBoard:
    """Belongs to one event loop; `note` must be called on that loop."""

    def __init__(self) -> None:
        self._count = 0
        self._ring: deque[Collection[bytes] | None] = deque(maxlen=limits.HINT_RING_MAX)
        self._waiting: dict[bytes, list[asyncio.Future[None]]] = {}
        # Told of every note, at once: for what listens to so many prefixes that a wait for each would cost too much.
        self.listeners: list[Callable[[Collection[bytes] | None], None]] = []

    @property
    def seen(self) -> int:
        return self._count

    def note(self, keys: Collection[bytes] | None) -> None:
        """These keys were written. None: it is unknown which; all waiting callers look."""
        self._count += 1
        self._ring.append(keys)
        for tell in self.listeners:
            tell(keys)
        if not self._waiting:
            return
        if keys is None:
            self._wake(list(self._waiting))
            return
        if len(self._waiting) <= FEW:  # most keys have no waiting caller, and this is the quickest check
            prefixes = tuple(self._waiting)
            keys = [key for key in keys if key.startswith(prefixes)]
        # By length: each key is cut once for all prefixes that are as long, however many wait.
        lengths = sorted({len(prefix) for prefix in self._waiting})
        met: dict[bytes, None] = {}
        for key in keys:
            for length in lengths:
                prefix = key[:length]
                if prefix in self._waiting:
                    met[prefix] = None
        self._wake(list(met))

    async def wait(self, prefix: bytes, seen: int, timeout_ms: int) -> bool:
        assert 0 <= seen <= self._count, "`seen` comes from a snapshot of this engine"
        # Before sleeping: what was written since the caller's snapshot must not be slept through.
        if self._noted_since(prefix, seen):
            return True
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(prefix, []).append(woken)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await woken
        except TimeoutError:
            return False
        finally:
            self._forget(prefix, woken)
        return True

    def _noted_since(self, prefix: bytes, seen: int) -> bool:
        missed = self._count - seen
        # The ring has forgotten some of them: looking once too often is the safe answer.
        if missed > len(self._ring):
            return True
        recent = (self._ring[index] for index in range(len(self._ring) - missed, len(self._ring)))
        return any(keys is None or any(key.startswith(prefix) for key in keys) for keys in recent)

    def _wake(self, prefixes: list[bytes]) -> None:
        for prefix in prefixes:
            for woken in self._waiting[prefix]:
                # Done already, if an earlier note came in the same turn of the loop, or the caller was cancelled.
                if not woken.done():
                    woken.set_result(None)

    def _forget(self, prefix: bytes, woken: asyncio.Future[None]) -> None:
        waiters = self._waiting[prefix]
        waiters.remove(woken)
        # An empty list left behind would be looked at by every later note.
        if not waiters:
            del self._waiting[prefix]


@runtime_checkable
class Hinting(Protocol):
    """An engine whose hints can be listened to."""

    hints: HintBoard


def written(batch: kv.Batch) -> list[bytes]:
    """What a batch wrote, as hints: whole keys of puts and counters, prefixes of appends. Deletes wake no caller."""
    keys = list(batch.puts)
    if batch.counts:
        keys += batch.counts
    if batch.appends:
        keys += {append.prefix: None for append in batch.appends}
    return keys
