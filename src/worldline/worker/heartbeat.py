"""The worker's heartbeat: one write renews all of its leases.

A worker that is late with it must stop believing in its leases: others may have taken its worlds.
"""

from __future__ import annotations

from collections.abc import Callable

from worldline.base import env as envs
from worldline.layers import leases
from worldline.model import ids
from worldline.model.settings import WorkerSettings
from worldline.runtime import facts as telemetry
from worldline.runtime import lease_calls as world_lease
from worldline.store import kv
from worldline.worker.store_clock import StoreClock


class Heartbeat:
    """`labels`: what the heartbeat says of the worker, at the time it is written."""

    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        worker: ids.WorkerId,
        settings: WorkerSettings,
        *,
        labels: Callable[[], dict[str, str]],
        clock: StoreClock,
        telemetry: telemetry.Telemetry = telemetry.NOTHING,
    ) -> None:
        self._engine = engine
        self._env = env
        self._settings = settings
        self._labels = labels
        self._clock = clock
        self._telemetry = telemetry
        self._renewed_us = 0
        self._changed = False  # what it says is not what it said last
        self.worker = worker
        self.incarnation = ids.Incarnation(envs.new_id(env))
        self.life: leases.HeartbeatRecord | None = None  # None: not written yet, or too old

    def is_due(self, now_us: int) -> bool:
        return self.life is None or self._changed or now_us - self._renewed_us >= self._settings.heartbeat_ms * 1000

    def changed(self) -> None:
        """What it says has changed: let others know soon."""
        self._changed = True

    def expired_us(self, now_us: int) -> int:
        """How old the heartbeat is, if it is too old to believe in it; else 0."""
        age_us = now_us - self._renewed_us
        # Sooner than other workers may take the worlds, by one heartbeat: this worker has to stop before that.
        margin_us = (self._settings.lease_ttl_ms - self._settings.heartbeat_ms) * 1000
        return age_us if self.life is not None and age_us > margin_us else 0

    def expire(self) -> None:
        self.life = None

    async def renew(self, now_us: int) -> None:
        # Before the labels are read: what changes during the write is said by the next heartbeat.
        self._changed = False
        self.life = await world_lease.beat(
            self._engine,
            self._env,
            self.worker,
            self.incarnation,
            self._settings,
            labels=self._labels(),
            told=self._clock.set,
        )
        # Counted from before the write: here a lease must never seem to last longer than in the store.
        self._renewed_us = now_us
        self._telemetry.tell(telemetry.Beat(self._env.monotonic_us() - now_us))

    async def living(self) -> leases.HeartbeatRecord:
        """The heartbeat under which leases are taken, written now if there is none."""
        if self.life is None:
            await self.renew(self._env.monotonic_us())
        assert self.life is not None
        return self.life

    async def read(self) -> leases.HeartbeatRecord | None:
        """The heartbeat as it stands in the store: others may have marked it as draining."""
        read = await self._engine.read(leases.get_heartbeat(self.worker))
        return leases.decode_heartbeat(self.worker, read.value(0))

    def adopt(self, life: leases.HeartbeatRecord) -> None:
        """Others have changed what it says."""
        self.life = life

    async def end(self) -> None:
        if self.life is not None:
            await world_lease.say_goodbye(self._engine, self._env, self.life)
            self.life = None
