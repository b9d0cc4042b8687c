"""Counting the age of a universe, by a janitor: see `layers/age.py`."""

from __future__ import annotations

from worldline.base import env as envs
from worldline.base import probes
from worldline.layers import age
from worldline.model import ids
from worldline.store import kv, transact

STORED_SHARE = 10  # of the time between two rounds: so often what was counted is stored


class AgeCounter:
    """What one janitor has counted. `every_us`: how much before it is stored."""

    def __init__(self, engine: kv.Engine, env: envs.Env, universe: ids.UniverseId, *, every_us: int) -> None:
        self._engine = engine
        self._env = env
        self._universe = universe
        self._every_us = min(every_us, age.STEP_US_MAX // 2)
        self._anchor: age.AgeAnchor | None = None  # None: this process has not looked yet

    async def look(self, *, store: bool = False) -> None:
        """Count what has passed since the last look, and store it if it is enough, or if that is asked for."""
        before_us = self._env.monotonic_us()
        read = await self._engine.read(age.get(self._universe))
        found = age.state(self._universe, read.value(0))
        # An anchor's own clock is read after its age: what this process was stopped for in between may be in the age
        # already. What is counted ends before the read, for the same reason.
        here = age.AgeAnchor(found.age.age_us, self._env.monotonic_us(), read.time_us)
        since = self._anchor
        if since is None or read.time_us < since.time_us:
            self._anchor = here  # what passed while the store's clock was set back is lost
            return
        grown_us = age.grown(since, monotonic_us=before_us, time_us=read.time_us)
        if grown_us <= found.age.age_us:
            self._anchor = here  # another janitor is ahead: this one continues from there
        elif store or grown_us - found.age.age_us >= self._every_us:
            batch = kv.Batch()
            age.advance(batch, found, since, grown_us)
            if await transact.applied(self._engine, self._env, batch):
                self._anchor = age.AgeAnchor(grown_us, before_us, read.time_us)
            else:
                probes.hit("age.counted-by-another")
