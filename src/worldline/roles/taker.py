"""Taking a world: acquire its lease, restore it, adopt a change of its program if there is one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor

from worldline.base import env as envs
from worldline.base import errors, failures
from worldline.kernel.program import Program
from worldline.layers import blobs as blob_layer
from worldline.layers import leases, worlds
from worldline.model import ids
from worldline.model.world import Status
from worldline.roles import cycling, holding, placement, restoring, telemetry
from worldline.roles.hosted import Hosted
from worldline.store import kv

log = logging.getLogger("worldline.worker")

WAY_OUT = (
    'run the code that wrote this until the world is quiet, or keep its path for open runs: `if wl.patched("..."):`'
)
REFUSED_SECONDS = 10  # how long a world whose bytes were found damaged is left alone


class Taker:
    """`living` is the worker's life sign, under which it takes leases; `refused` the worlds that it cannot run."""

    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        programs: Sequence[Program],
        *,
        blobs: blob_layer.Blobs,
        kernel: Executor,
        clock: cycling.Clock,
        cycle: cycling.Cycle,
        labels: dict[str, str],
        is_dead: Callable[[ids.WorkerId], bool],
        living: Callable[[], Awaitable[leases.Life]],
        refused: dict[ids.Address, str],
        telemetry: telemetry.Telemetry = telemetry.NOTHING,
    ) -> None:
        self._engine = engine
        self._env = env
        self._programs = {program.name: program for program in programs}
        self._blobs = blobs
        self._kernel = kernel
        self._clock = clock
        self._cycle = cycle
        self._labels = labels
        self._is_dead = is_dead
        self._living = living
        self._refused = refused
        self._telemetry = telemetry
        self.restored_ms = 0.0

    async def take(self, at: ids.Address) -> Hosted:
        """Acquire the lease, restore the world, adopt a change of its program if there is one."""
        read = await self._engine.read(worlds.get(at))
        self._clock.set(read.time_us)
        world = worlds.decode(at, read.value(0))
        program = self._programs.get(world.meta.program)
        if program is None:
            raise errors.NotFound(f"no program {world.meta.program!r} is hosted here")
        unmet = placement.unmet(placement.needs_of(world.meta), self._labels)
        if unmet is not None:
            raise errors.Exists(f"world {world.meta.name!r} is for workers that are labelled {unmet}")
        if world.meta.status is not Status.ACTIVE:
            raise errors.Closed(f"world {world.meta.name!r} is {world.meta.status.name.lower()}")
        life = await self._living()
        started_us = self._env.monotonic_us()
        lease = await holding.acquire(self._engine, self._env, at, life, self._is_dead)
        try:
            hosted = await self._restore(world, program, lease)
        except BaseException as error:
            await holding.release(self._engine, self._env, lease)
            if isinstance(error, failures.Diverged):
                raise errors.Closed(f"world {world.meta.name!r} cannot go on: {error.report}\n  {WAY_OUT}") from error
            raise
        taken_us = self._env.monotonic_us() - started_us
        self.restored_ms = taken_us / 1000
        hosted.name = world.meta.name
        self._telemetry.tell(telemetry.Taken(at, hosted.name, lease.epoch, hosted.head.height, taken_us))
        log.info(
            "world %r at epoch %d, height %d, in %.1f ms",
            hosted.name, lease.epoch, hosted.head.height, self.restored_ms, extra=telemetry.about(at, name=hosted.name),
        )  # fmt: skip
        return hosted

    async def _restore(self, world: worlds.World, program: Program, lease: leases.Lease) -> Hosted:
        try:
            await holding.take_back_claims(self._engine, self._env, world.at, self._is_dead)
            restored = await restoring.restore(self._engine, self._blobs, program, world.at, self._kernel)
            hosted = Hosted(program, lease, self._blobs, restored, now_us=self._env.monotonic_us())
            if restored.program_hash != program.hash:
                await holding.adopt(self._kernel, self._cycle, hosted, world, restored.program_hash)
        except (failures.Diverged, errors.Corrupt) as error:
            self._refused[world.at] = str(error)
            if isinstance(error, errors.Corrupt):  # bytes may be whole again, code does not change while we run
                asyncio.get_running_loop().call_later(REFUSED_SECONDS, self._refused.pop, world.at, None)
            log.warning("world %r cannot go on: %s", world.meta.name, error, extra=telemetry.about(world.at))
            raise
        return hosted
