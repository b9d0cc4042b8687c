"""The real `Env`. The only file that may ask the operating system for time or randomness.

Random bytes are drawn from the system in advance: asking for each handful costs more than the ids that are made of
them. What was drawn is given out once, to any number of threads, and not at all in a forked child.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
import time
from collections.abc import Awaitable

DRAWN_BYTES = 4_096


class _Drawn:
    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        # A new lock, too: in a forked child, the old one may be held by a thread that is not there.
        self._lock = threading.Lock()
        self._bytes = b""
        self._at = 0

    def take(self, count: int) -> bytes:
        if count > DRAWN_BYTES:
            return os.urandom(count)
        with self._lock:
            # What is left of the bytes is thrown away: a few, and none is ever given out twice.
            if self._at + count > len(self._bytes):
                self._bytes = os.urandom(DRAWN_BYTES)
                self._at = 0
            taken = self._bytes[self._at : self._at + count]
            self._at += count
        return taken


_drawn = _Drawn()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drawn.forget)


class OsEnv:
    def wall_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_us(self) -> int:
        return time.monotonic_ns() // 1000

    def random_bytes(self, count: int) -> bytes:
        return _drawn.take(count)

    def random_below(self, bound: int) -> int:
        return secrets.randbelow(bound)

    def sleep(self, seconds: float) -> Awaitable[None]:
        return asyncio.sleep(seconds)

    def timeout(self, seconds: float) -> asyncio.Timeout:
        return asyncio.timeout(seconds)
