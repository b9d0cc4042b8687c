"""Engines for the layers' tests: real ones by name, and one that lets something happen at a chosen moment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from worldline.base import env as envs
from worldline.store import kv, memory_engine
from worldline.store.lmdb import lmdb_driver

NAMES = ["memory", "lmdb"]
MAP_BYTES = 64 * 1024 * 1024


@asynccontextmanager
async def opened(name: str, folder: Path, env: envs.Env) -> AsyncIterator[kv.Engine]:
    engine: kv.Engine
    if name == "memory":
        engine = memory_engine.MemoryEngine(env)
    else:
        engine = await lmdb_driver.open(folder / "store", env, create=True, map_bytes=MAP_BYTES)
    try:
        yield engine
    finally:
        await engine.close()


class Meddled:
    """An engine in whose first commit something else happens first: a race, won by the other side.

    With `lost`, the first commit itself is not applied and its answer is lost.
    """

    def __init__(self, engine: kv.Engine, meddle: Callable[[], Awaitable[object]], *, lost: bool = False) -> None:
        self._engine = engine
        self._meddle: Callable[[], Awaitable[object]] | None = meddle
        self._lost = lost

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        return await self._engine.read(*requests)

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        if self._meddle is None:
            return await self._engine.commit(*batches)
        meddle, self._meddle = self._meddle, None
        await meddle()
        if self._lost:
            return [kv.CommitUnknown("lost") for _ in batches]
        return await self._engine.commit(*batches)

    async def wait(self, prefix: bytes, seen: int, timeout_ms: int) -> bool:
        return await self._engine.wait(prefix, seen, timeout_ms)

    async def durability(self) -> kv.Durability:
        return await self._engine.durability()

    async def close(self) -> None:
        await self._engine.close()
