"""Limits per kind of effect, in this process: how many at once, and how many per second.

Permits are handed over directly in order of arrival, so nobody can barge in and the bound is never exceeded. A
rate is a schedule: each start is given the next free instant.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from worldline.base import env as envs


class Limit:
    def __init__(self, concurrency: int | None, rate: float | None) -> None:
        self.most = concurrency
        self.gap_us = None if rate is None else round(1_000_000 / rate)
        self.running = 0
        self.next_us = 0
        self.waiting: deque[asyncio.Future[None]] = deque()


class Limits:
    def __init__(self, env: envs.Env) -> None:
        self._env = env
        self._limits: dict[str, Limit] = {}

    def declare(self, name: str, concurrency: int | None, rate: float | None) -> None:
        if concurrency is not None or rate is not None:
            self._limits[name] = Limit(concurrency, rate)

    def free_for_claim(self, name: str) -> bool:
        """Whether another one of this kind could start now. What cannot is better left in the queue for others."""
        limit = self._limits.get(name)
        if limit is None:
            return True
        busy = limit.most is not None and limit.running + len(limit.waiting) >= limit.most
        return not busy and (limit.gap_us is None or limit.next_us <= self._env.monotonic_us())

    @asynccontextmanager
    async def running(self, name: str) -> AsyncIterator[None]:
        limit = self._limits.get(name)
        if limit is None:
            yield
            return
        await self._enter(limit)
        try:
            await self._pace(limit)
            yield
        finally:
            self._leave(limit)

    async def _enter(self, limit: Limit) -> None:
        if limit.most is None or limit.running < limit.most:
            limit.running += 1
            return
        permit: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        limit.waiting.append(permit)
        try:
            await permit
        except asyncio.CancelledError:
            if permit.done() and not permit.cancelled():
                self._leave(limit)  # it was handed to us just as we were cancelled: pass it on
            raise

    def _leave(self, limit: Limit) -> None:
        while limit.waiting:
            permit = limit.waiting.popleft()
            if not permit.done():
                permit.set_result(None)
                return
        limit.running -= 1

    async def _pace(self, limit: Limit) -> None:
        if limit.gap_us is None:
            return
        now_us = self._env.monotonic_us()
        start_us = max(now_us, limit.next_us)
        limit.next_us = start_us + limit.gap_us
        if start_us > now_us:
            await self._env.sleep((start_us - now_us) / 1_000_000)
