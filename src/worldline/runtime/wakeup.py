"""Resting until something may have happened: woken by this process, by a hint from the store, or by time.

One `Wakeup` serves one role. A task of its own listens to the store's hints, so a role that is busy pays nothing for
them; the role looks at `hinted` when it next has time. It says what it has `looked` at: only what comes after that is
news, and it is told of news once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from worldline.base import env as envs
from worldline.base import errors
from worldline.store import kv

LISTEN_MS = 5_000
PAUSE_SECONDS = 0.2


class Wakeup:
    def __init__(self, engine: kv.Engine, env: envs.Env, prefixes: Sequence[bytes]) -> None:
        self._engine = engine
        self._env = env
        self._prefixes = list(prefixes)
        self._woken = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._seen = -1  # what was looked at last
        self._look: asyncio.Future[None] | None = None  # ends with the next look
        self.hinted = False

    def wake(self) -> None:
        """Something in this process has happened: do not rest."""
        self._woken.set()

    def clear(self) -> None:
        """Forget what woke us; to be called before looking for work, so that what comes meanwhile is not missed."""
        self._woken.clear()

    def hint(self) -> None:
        """Look again: what the last look was for is not done."""
        self.hinted = True

    def take_hint(self) -> None:
        """A look begins."""
        self.hinted = False

    def looked(self, seen: int) -> None:
        """The role has read what there is; `seen` is what the snapshot had seen."""
        self._seen = seen
        if self._look is not None and not self._look.done():
            self._look.set_result(None)

    async def rest(self, most_ms: float) -> None:
        """Until woken or hinted, or for so long at most."""
        # With the first rest, not before: a role that never rests needs no listener.
        if not self._tasks:
            loop = asyncio.get_running_loop()
            self._tasks = [loop.create_task(self._listen(prefix)) for prefix in self._prefixes]
        if self._woken.is_set():
            return
        try:
            async with self._env.timeout(most_ms / 1000):
                await self._woken.wait()
        except TimeoutError:
            pass

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _listen(self, prefix: bytes) -> None:
        """Turn hints into wake-ups. A store that is out of reach for a while only makes this deaf for a while."""
        told = -1  # a role that has not looked since it was told is not told again
        while True:
            # Else the same hint would wake the role again and again before it has looked.
            if self._seen == told:
                await self._next_look()
                continue
            seen = self._seen
            try:
                hinted = await self._engine.wait(prefix, seen, LISTEN_MS)
            except errors.StoreError:
                await self._env.sleep(PAUSE_SECONDS)
                continue
            if hinted:
                told = seen
                self.hinted = True
                self._woken.set()

    async def _next_look(self) -> None:
        if self._look is None or self._look.done():
            self._look = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._look])
