"""What features clear away, each in turns of bounded work: jobs that a janitor gives turns to.

A job that watches keys has a turn whenever the janitor looks, before its round goes on, and is woken by what is written
there: what was deleted does not wait. Any other has its turns at the end of each round, one job after the other. Jobs
of the store are done by one janitor of a process, however many universes it serves.

As with all that a janitor does, nothing may depend on a job, and any number of processes may be at the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from worldline.base import env as envs
from worldline.layers import blobs as blob_layer
from worldline.model import ids
from worldline.model.settings import JanitorSettings
from worldline.runtime import facts
from worldline.store import kv


class JanitorContext(msgspec.Struct, frozen=True, kw_only=True):
    """What the janitor of one universe works with, and its jobs. `is_dead`: proof that a worker is; `worker`: of this
    process, if it has a heartbeat.
    """

    engine: kv.Engine
    env: envs.Env
    universe: ids.UniverseId
    blobs: blob_layer.Blobs
    settings: JanitorSettings
    is_dead: Callable[[ids.WorkerId], bool]
    worker: ids.WorkerId | None
    telemetry: facts.Telemetry


class JanitorJob(Protocol):
    watches: Sequence[bytes] = ()  # what keys begin with that have it work at once; none: it works in rounds
    seen: int = -1  # what its last look at them had seen
    rest_ms: int | None = None  # between its turns; None: as long as between any two of a round

    async def turn(self) -> bool:
        """A bounded part of the work. Returns whether that was all there is now."""

    async def close(self) -> None:
        """Leave nothing behind that others wait for."""
