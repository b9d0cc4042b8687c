"""Every worker of a store, one read for each: what a worker holds may be much, and is not read."""

from __future__ import annotations

from typing import Self

from worldline.layers import leases
from worldline.model import ids
from worldline.store import kv


class WorkerWalk:
    """Workers by id, each with its heartbeat if it has one: others still hold something. A loop may be left early."""

    __slots__ = ("_after", "_engine", "time_us")

    def __init__(self, engine: kv.Engine) -> None:
        self._engine = engine
        self._after: ids.WorkerId | None = None
        self.time_us = 0  # the store's, at the last read

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[ids.WorkerId, leases.HeartbeatRecord | None]:
        read = await self._engine.read(leases.workers_range(after=self._after))
        self.time_us = read.time_us
        found = leases.decode_worker(read.page(0))
        if found is None:
            raise StopAsyncIteration
        self._after = found[0]
        return found
