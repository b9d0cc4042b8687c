"""Machines that run one role alone, as processes of their own do in a cluster.

`control.host.Host` runs all roles side by side, with short cuts between them. Here there are none: a world worker's
effects go through the queue, an adapter's answers through the inbox, timers are fired from elsewhere.
"""

from __future__ import annotations

from typing import Literal

from worldline.base import env as envs
from worldline.control import compose
from worldline.layers import blobs as blob_layer
from worldline.model import ids
from worldline.model.settings import Settings
from worldline.roles import adapter_worker, committing, hub, loop, timer_worker, world_worker
from worldline.sim import workloads

Role = Literal["worlds", "adapter", "timers"]


class Solo:
    """One role on a machine of its own."""

    def __init__(self, role: Role, store: compose.Store, universe: ids.UniverseId, settings: Settings) -> None:
        engine, env = store.engine, store.env
        blobs = blob_layer.Blobs(engine, store.objects, env, universe)
        worker = ids.WorkerId(envs.new_id(env))
        made: world_worker.WorldWorker | adapter_worker.AdapterWorker | timer_worker.TimerWorker
        match role:
            case "worlds":
                made = world_worker.WorldWorker(
                    engine, env, universe, workloads.PROGRAMS,
                    blobs=blobs, live=hub.Hub(), claims=committing.Claims(), settings=settings.worker, worker=worker,
                )  # fmt: skip
            case "adapter":
                made = adapter_worker.AdapterWorker(
                    engine, env, universe, workloads.PROGRAMS,
                    blobs=blobs, live=hub.Hub(), settings=settings.adapter, worker=worker,
                )  # fmt: skip
            case "timers":
                made = timer_worker.TimerWorker(engine, env, universe, settings=settings.timer, worker=worker)
        self._loop = loop.Loop(role, made.tick, env, wake=made.wake)

    def start(self) -> None:
        self._loop.start()

    @property
    def failed(self) -> BaseException | None:
        """The bug that stopped the role, if one did."""
        return self._loop.failed
