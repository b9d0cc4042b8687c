"""The real `Env`. The only file that may ask the operating system for time or randomness."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable


class OsEnv:
    def wall_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_us(self) -> int:
        return time.monotonic_ns() // 1000

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def random_below(self, bound: int) -> int:
        return secrets.randbelow(bound)

    def sleep(self, seconds: float) -> Awaitable[None]:
        return asyncio.sleep(seconds)
