"""What befalls a process at one of its own commits: it dies right before or right after, or it stands still.

Counted are the commits that a world's life is made of; life signs and what a store needs once come at times of their
own, and between two of them nothing is lost that the neighbours do not lose as well.
"""

from __future__ import annotations

import asyncio
import enum
import os
import signal

from worldline.sim.runtime import keyspaces
from worldline.store import kv

NOT_COUNTED = ("beat", "other", "create")


class Fate(enum.StrEnum):
    BEFORE = "before"  # killed, the commit is not applied
    AFTER = "after"  # killed, the commit is applied and nobody was told
    PAUSED = "paused"  # stopped with the commit ready to be sent, until somebody lets it go on


class Fated:
    """An engine whose process meets its fate at the `at`-th commit that counts, from 1 on."""

    def __init__(self, engine: kv.Engine, fate: Fate, at: int) -> None:
        self._engine = engine
        self._fate = fate
        self._at = at
        self._commits = 0
        self._under_way = 0

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        return await self._engine.read(*requests)

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        counts = any(keyspaces.about(batch) not in NOT_COUNTED for batch in batches)
        self._commits += counts
        met = counts and self._commits == self._at
        if met and self._fate is Fate.BEFORE:
            os.kill(os.getpid(), signal.SIGKILL)
        if met and self._fate is Fate.PAUSED:
            await self._stop()
        self._under_way += 1
        try:
            outcomes = await self._engine.commit(*batches)
        finally:
            self._under_way -= 1
        if met and self._fate is Fate.AFTER:
            os.kill(os.getpid(), signal.SIGKILL)
        return outcomes

    async def _stop(self) -> None:
        """Stand still, but not with another commit half done: in a folder that would stop everybody."""
        while self._under_way:  # noqa: ASYNC110 - there is nothing to be told by
            await asyncio.sleep(0.001)
        os.kill(os.getpid(), signal.SIGSTOP)

    async def wait(self, prefix: bytes, seen: int, timeout_ms: int) -> bool:
        return await self._engine.wait(prefix, seen, timeout_ms)

    async def durability(self) -> kv.Durability:
        return await self._engine.durability()

    async def close(self) -> None:
        await self._engine.close()
