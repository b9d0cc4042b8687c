"""Limits per kind of effect, in this process: how many at once, and how many per second.

Work takes a slot before it is claimed and keeps it until it is over, so no more is claimed than could start soon; what
cannot is left in the queue for others. Permits to run are handed over directly in order of arrival, so none is
overtaken and the bound is never exceeded. A rate is a schedule: each start is given the next free instant.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from worldline.base import env as envs

AHEAD_US = 100_000  # work that a rate allows to start this soon may be claimed now


class Limit:
    """The bound of one kind, and who uses it."""

    def __init__(self, env: envs.Env, concurrency: int | None, rate: float | None) -> None:
        self._env = env
        self._most = concurrency
        self._gap_us = None if rate is None else max(1, round(1_000_000 / rate))
        self._running = 0
        self._taken = 0  # slots, running or not
        self._next_us = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def most(self) -> int | None:
        """How many slots there are; None: without bound."""
        return self._most

    @property
    def taken(self) -> int:
        """How many slots are taken."""
        return self._taken

    def room(self) -> int:
        """How many more slots could be taken now."""
        free = 2**31 if self._most is None else self._most - self._taken
        if self._gap_us is not None:
            starts = (self._env.monotonic_us() + AHEAD_US - self._next_us) // self._gap_us + 1
            free = min(free, min(starts, AHEAD_US // self._gap_us + 1) - (self._taken - self._running))
        return max(0, free)

    def wait_us(self) -> int | None:
        """How long until there may be room again by itself; None if something has to end first."""
        if self._gap_us is None or (self._most is not None and self._taken >= self._most):
            return None
        return max(1, self._next_us - AHEAD_US - self._env.monotonic_us())

    def take(self, closed: Callable[[], None] | None = None) -> Slot:
        """A slot. `closed` is called when it is free again."""
        self._taken += 1
        return Slot(self, closed)

    def try_enter(self) -> bool:
        """Whether there was a permit at once."""
        free = self._most is None or self._running < self._most
        self._running += free
        return free

    @property
    def is_paced(self) -> bool:
        return self._gap_us is not None

    async def enter(self) -> None:
        if self.try_enter():
            return
        permit: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(permit)
        try:
            await permit
        except asyncio.CancelledError:
            if permit.done() and not permit.cancelled():
                self.leave()  # it was handed to us just as we were cancelled: pass it on
            raise

    async def pace(self) -> None:
        if self._gap_us is None:
            return
        now_us = self._env.monotonic_us()
        start_us = max(now_us, self._next_us)
        # Before the sleep: the next caller must get the instant after this one.
        self._next_us = start_us + self._gap_us
        if start_us > now_us:
            await self._env.sleep((start_us - now_us) / 1_000_000)

    def leave(self) -> None:
        while self._waiting:
            permit = self._waiting.popleft()
            # A caller that was cancelled while it stood in line; the next one gets the permit.
            if not permit.done():
                permit.set_result(None)
                return
        self._running -= 1

    def give_up(self) -> None:
        self._taken -= 1


class Slot:
    """A place for one attempt."""

    def __init__(self, limit: Limit, closed: Callable[[], None] | None = None) -> None:
        self._limit = limit
        self._on_close = closed
        self._entered = False
        self._closed = False

    def try_start(self) -> bool:
        """Whether the attempt may run now, without waiting for anything."""
        if self._limit.is_paced or not self._limit.try_enter():
            return False
        self._entered = True
        return True

    async def start(self) -> None:
        """Wait until the attempt may run."""
        await self._limit.enter()
        self._entered = True
        await self._limit.pace()

    def close(self) -> None:
        """It is over, however it ended. Closing twice is closing once."""
        if self._closed:
            return
        self._closed = True
        self._limit.give_up()
        if self._entered:
            self._limit.leave()
        if self._on_close is not None:
            self._on_close()
