"""A hold for as long as a copy takes: nothing that it reads, or has put and not published, is collected meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from worldline.base import env as envs
from worldline.base import errors
from worldline.features.collection import collection_holds
from worldline.model import ids
from worldline.store import kv

# Four times in the life of a hold: some renewals may be late.
RENEW_US = collection_holds.TTL_MS * 1000 // 4


class Holding:
    """Holds of some universes. A copy under way calls `keep` often: it renews them when it is time."""

    def __init__(self, engine: kv.Engine, env: envs.Env) -> None:
        self._engine = engine
        self._env = env
        self._held: list[tuple[ids.UniverseId, bytes]] = []
        self._renewed_us = env.monotonic_us()

    async def take(self, universe: ids.UniverseId, what: str) -> None:
        self._held.append((universe, await collection_holds.take(self._engine, self._env, universe, what=what)))

    async def keep(self) -> None:
        """`NotFound` if one has expired: what it kept may be gone."""
        now_us = self._env.monotonic_us()
        if now_us - self._renewed_us >= RENEW_US:
            for universe, id in self._held:
                await collection_holds.renew(self._engine, self._env, universe, id)
            self._renewed_us = now_us

    async def release(self) -> None:
        """If that fails, they expire."""
        for universe, id in self._held:
            with contextlib.suppress(errors.StoreError):
                await collection_holds.release(self._engine, self._env, universe, id)


@asynccontextmanager
async def holding(
    engine: kv.Engine, env: envs.Env, universes: Sequence[ids.UniverseId], what: str
) -> AsyncIterator[Holding]:
    found = Holding(engine, env)
    try:
        # Inside of the `try`: if one cannot be taken, those before it are released.
        for universe in universes:
            await found.take(universe, what)
        yield found
    finally:
        await found.release()
