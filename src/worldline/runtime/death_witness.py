"""A witness: what one process knows of the lives of others, by its own eyes.

A heartbeat expires by the store's clock. If that clock is set back when a worker has just died, its sign would last
longer by as much. So a process that wants to take over also counts by its own monotonic clock: a heartbeat changes the
sign's bytes (`beat`), and a sign that was seen with the very same bytes for a whole TTL and a margin was not renewed.

This only decides who may try. What is done about it expects the sign's bytes, and safety is the epoch. With clocks that
are right the store's time is always first: a sign is seen at the earliest when it is written.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from worldline.base import env as envs
from worldline.base.bounded_map import BoundedMap
from worldline.layers import leases
from worldline.model import ids
from worldline.runtime import worker_walk
from worldline.store import kv

MARGIN = 4  # a part of the TTL, for clocks that do not run equally fast
SIGNS_MAX = 4_096  # of workers that are remembered; those that were not looked at for longest are forgotten


class DeathWitness:
    def __init__(self, env: envs.Env, is_dead: Callable[[ids.WorkerId], bool] = lambda _: False) -> None:
        self._env = env
        # The bytes, and since when they were seen.
        self._signs: BoundedMap[ids.WorkerId, tuple[bytes, int]] = BoundedMap(SIGNS_MAX)
        self.is_dead = is_dead  # proof: its process is certainly gone

    async def lives(self, engine: kv.Engine) -> tuple[list[leases.HeartbeatRecord], int]:
        """Every worker that has a heartbeat, looked at; and the store's time."""
        workers = worker_walk.WorkerWalk(engine)
        lives = [life async for _, sign in workers if (life := self.look(sign)) is not None]
        return lives, workers.time_us

    def look(self, life: leases.HeartbeatRecord | None) -> leases.HeartbeatRecord | None:
        """A heartbeat that was read just now, marked `stale` if it was seen unchanged for too long."""
        if life is None:
            return None
        now_us = self._env.monotonic_us()
        raw, since_us = self._signs.get(life.worker, (life.raw, now_us))
        if raw != life.raw:
            since_us = now_us
        self._signs[life.worker] = (life.raw, since_us)
        ttl_us = life.sign.ttl_us
        if now_us - since_us < ttl_us + ttl_us // MARGIN:
            return life
        return msgspec.structs.replace(life, stale=True)
