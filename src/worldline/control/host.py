"""Hosting: the roles of one process, put together and run side by side.

A host holds worlds of its programs, performs their effects and fires their timers. Any number of hosts may share a
store. Closing one saves and releases its worlds, so that the next starts where this one stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from worldline.adapters.egress import Egress
from worldline.base import env as envs
from worldline.base import errors
from worldline.control import compose, presence
from worldline.kernel.program import Program
from worldline.layers import blobs as blob_layer
from worldline.model import ids
from worldline.model.settings import Settings
from worldline.roles import adapter_worker, builtin, hub, loop, timer_worker, world_worker


class Host:
    def __init__(
        self,
        store: compose.Store,
        universe: ids.UniverseId,
        programs: Sequence[Program],
        *,
        blobs: blob_layer.Blobs,
        settings: Settings,
        egress: Egress | None = None,
    ) -> None:
        names = [program.name for program in programs]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise errors.BadInput(f"two programs are named {twice!r}")
        env = store.env
        self.worker = ids.WorkerId(envs.new_id(env))
        self.live = hub.Hub()
        self._abandoned = False
        self._presence = presence.Presence(Path(store.url)) if compose.scheme(store.url) == "" else None
        is_dead = self._presence.is_dead if self._presence is not None else lambda _: False
        self.adapter = adapter_worker.AdapterWorker(
            store.engine, env, universe, programs,
            blobs=blobs, live=self.live, settings=settings.adapter, worker=self.worker,
            builtins=[builtin.http_request(egress or Egress())],
        )  # fmt: skip
        self.worlds = world_worker.WorldWorker(
            store.engine, env, universe, programs,
            blobs=blobs, live=self.live, claims=self.adapter, settings=settings.worker, worker=self.worker,
            is_dead=is_dead,
        )  # fmt: skip
        self.timers = timer_worker.TimerWorker(store.engine, env, universe, settings=settings.timer, worker=self.worker)
        self.adapter.attach(self.worlds)
        self.timers.attach(self.worlds)
        self._loops = [
            loop.Loop("world worker", self.worlds.tick, env, wake=self.worlds.wake),
            loop.Loop("adapter worker", self.adapter.tick, env, wake=self.adapter.wake),
            loop.Loop("timer worker", self.timers.tick, env, wake=self.timers.wake),
        ]

    def start(self) -> None:
        if self._presence is not None:
            self._presence.enter(self.worker)
        for each in self._loops:
            each.start()

    def abandon(self) -> None:
        """Close without saving or releasing anything, as if killed. For benchmarks and tests of what comes after."""
        self._abandoned = True

    @property
    def failed(self) -> BaseException | None:
        """The bug that stopped a role, if one did."""
        return next((each.failed for each in self._loops if each.failed is not None), None)

    def check(self) -> None:
        """Raise the bug that stopped a role, if one did."""
        if self.failed is not None:
            raise self.failed

    async def close(self) -> None:
        """Stop the roles, save and release the worlds."""
        timers_and_effects = self._loops[1:]
        await asyncio.gather(*(each.stop() for each in timers_and_effects))
        await self.adapter.close(abandon=self._abandoned)
        await self.timers.close()
        await self._loops[0].stop()
        tidy = False
        try:
            await self.worlds.close(abandon=self._abandoned)
            tidy = not self._abandoned
        finally:
            if self._presence is not None:
                self._presence.leave(self.worker, tidy=tidy)
        self.check()
