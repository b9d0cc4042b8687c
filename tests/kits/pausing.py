"""An engine whose process stands still: every call waits, also one that is on its way, until it is let go on."""

from __future__ import annotations

import asyncio

from worldline.store import kv


class Pausing:
    def __init__(self, engine: kv.Engine) -> None:
        self._engine = engine
        self._going = asyncio.Event()
        self._going.set()
        self.applied: list[kv.Batch] = []  # since the last pause

    def pause(self) -> None:
        self._going.clear()
        self.applied = []

    def resume(self) -> None:
        self._going.set()

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        await self._going.wait()
        found = await self._engine.read(*requests)
        await self._going.wait()
        return found

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        await self._going.wait()
        outcomes = await self._engine.commit(*batches)
        self.applied += [batch for batch, outcome in zip(batches, outcomes, strict=True) if isinstance(outcome, kv.Ok)]
        await self._going.wait()
        return outcomes

    async def wait(self, prefix: bytes, seen: int, timeout_ms: int) -> bool:
        await self._going.wait()
        return await self._engine.wait(prefix, seen, timeout_ms)

    async def durability(self) -> kv.Durability:
        return await self._engine.durability()

    async def close(self) -> None:
        self.resume()
        await self._engine.close()
