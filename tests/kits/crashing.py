"""Engines that watch commits, and let one of them go wrong."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Sequence

from worldline.base import errors
from worldline.store import kv


class Fate(enum.Enum):
    """What happens at the chosen commit."""

    DIES_BEFORE = "the process dies before it is applied"
    DIES_AFTER = "the process dies after it is applied"
    UNKNOWN_APPLIED = "it is applied, but the answer is lost"
    UNKNOWN_NOT_APPLIED = "it is not applied, and the answer is lost"
    UNAVAILABLE = "the store is out of reach"


DEATHS = (Fate.DIES_BEFORE, Fate.DIES_AFTER)


class Crashing:
    """Counts commits; the `at`-th (from 1) meets its fate. After a death every call fails, for good."""

    def __init__(self, engine: kv.Engine, at: int, fate: Fate) -> None:
        self._engine = engine
        self._at = at
        self._fate = fate
        self.commits = 0
        self.dead = asyncio.Event()

    def die_at(self, commit: int) -> None:
        self._at = commit

    @property
    def met(self) -> bool:
        return self.commits >= self._at

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        self._check()
        found = await self._engine.read(*requests)
        self._check()
        return found

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        self._check()
        self.commits += 1
        if self.commits != self._at:
            outcomes = await self._engine.commit(*batches)
            self._check()
            return outcomes
        return await self._meet(batches)

    async def _meet(self, batches: Sequence[kv.Batch]) -> list[kv.Outcome]:
        if self._fate is Fate.UNAVAILABLE:
            raise errors.StoreUnavailable("just now")
        if self._fate is Fate.DIES_BEFORE:
            self.dead.set()
            self._check()
        if self._fate is not Fate.UNKNOWN_NOT_APPLIED:
            await self._engine.commit(*batches)
        if self._fate is Fate.DIES_AFTER:
            self.dead.set()
            self._check()
        return [kv.CommitUnknown("lost") for _ in batches]

    async def wait(self, prefix: bytes, seen: int, timeout_ms: int) -> bool:
        self._check()
        return await self._engine.wait(prefix, seen, timeout_ms)

    async def durability(self) -> kv.Durability:
        return await self._engine.durability()

    async def close(self) -> None:
        await self._engine.close()

    def _check(self) -> None:
        if self.dead.is_set():
            raise errors.StoreUnavailable("this process is dead")


class Counting:
    """Counts commits, and keeps the batches that were applied if asked to."""

    def __init__(self, engine: kv.Engine, *, keep: bool = True) -> None:
        self._engine = engine
        self._keep = keep
        self.commits = 0
        self.batches: list[kv.Batch] = []

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        return await self._engine.read(*requests)

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        outcomes = await self._engine.commit(*batches)
        self.commits += 1
        if self._keep:
            applied = zip(batches, outcomes, strict=True)
            self.batches += [batch for batch, outcome in applied if isinstance(outcome, kv.Ok)]
        return outcomes

    async def wait(self, prefix: bytes, seen: int, timeout_ms: int) -> bool:
        return await self._engine.wait(prefix, seen, timeout_ms)

    async def durability(self) -> kv.Durability:
        return await self._engine.durability()

    async def close(self) -> None:
        await self._engine.close()
