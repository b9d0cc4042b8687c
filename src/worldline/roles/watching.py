"""Resting until something may have happened: woken by this process, by a hint from the store, or by time.

One `Watch` serves one role. A task of its own listens to the store's hints, so a role that is busy pays nothing for
them; the role looks at `hinted` when it next has time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from worldline.base import errors
from worldline.store import kv

LISTEN_MS = 5_000
PAUSE_SECONDS = 0.2


class Watch:
    def __init__(self, engine: kv.Engine, prefixes: Sequence[bytes]) -> None:
        self._engine = engine
        self._prefixes = list(prefixes)
        self._woken = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.hinted = False

    def wake(self) -> None:
        """Something in this process has happened: do not rest."""
        self._woken.set()

    def clear(self) -> None:
        """Forget what woke us; to be called before looking for work, so that what comes meanwhile is not missed."""
        self._woken.clear()

    async def rest(self, most_ms: float) -> None:
        """Until woken or hinted, or for so long at most."""
        if not self._tasks:
            loop = asyncio.get_running_loop()
            self._tasks = [loop.create_task(self._listen(prefix)) for prefix in self._prefixes]
        if self._woken.is_set():
            return
        try:
            async with asyncio.timeout(most_ms / 1000):
                await self._woken.wait()
        except TimeoutError:
            pass

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _listen(self, prefix: bytes) -> None:
        """Turn hints into wake-ups. A store that is out of reach for a while only makes this deaf for a while.

        Between two hints it pauses for as long as asking took: a store under load is not asked all the time. What comes
        in the pause is after `seen`, and ends the wait at once.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                began = loop.time()
                seen = (await self._engine.read()).seen
                await asyncio.sleep(min(loop.time() - began, PAUSE_SECONDS))
                hinted = await self._engine.wait(prefix, seen, LISTEN_MS)
            except errors.StoreError:
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            if hinted:
                self.hinted = True
                self._woken.set()
