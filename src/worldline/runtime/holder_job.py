"""Jobs beside the steps: what features do for the worlds that a process holds.

A feature brings how its job is made (`runtime/feature.py`); the host makes one for its world worker. A job is told of
worlds that were taken or saved. A save asks which snapshots go with it. What a job has to say of worlds goes with the
worker's heartbeat. A job either starts tasks beside the worker's turns, or has a loop of its own. Steps wait for none.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import msgspec

from worldline.base import env as envs
from worldline.kernel.authoring.program import Program
from worldline.kernel.parts import StepParts
from worldline.layers import blobs as blob_layer
from worldline.layers import leases
from worldline.layers.snapshots import StoredSnapshot
from worldline.model import ids, journal
from worldline.model.settings import Settings
from worldline.model.snapshots import StateSnapshot
from worldline.runtime import facts, role_loop, watchdog
from worldline.store import kv

T = TypeVar("T")


class JobWorld(Protocol):
    """A world that a worker holds, as far as a job sees it."""

    at: ids.Address
    name: str
    program: Program
    lease: leases.Lease
    blobs: blob_layer.Blobs
    head: journal.Head
    baseline: StateSnapshot
    lost: bool


class TaskRunner(Protocol):
    """What runs beside a worker's turns. The worker waits for it when it closes."""

    def is_running(self, name: str) -> bool: ...

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None: ...


class JobWorker(Protocol):
    """The worker that holds the worlds, as far as a job sees it."""

    @property
    def held(self) -> Sequence[JobWorld]: ...

    @property
    def tasks(self) -> TaskRunner: ...

    def under_way(self) -> Mapping[int, watchdog.UnderWay]:
        """The cycles that have not come back yet."""
        ...

    async def compute(self, at: ids.Address, do: Callable[..., T], *args: Any) -> T:
        """Run something about a world in the kernel's thread."""
        ...


class HolderContext(msgspec.Struct, frozen=True):
    """What a job is made of."""

    engine: kv.Engine
    env: envs.Env
    blobs: blob_layer.Of
    programs: Sequence[Program]
    parts: StepParts
    worker: JobWorker
    settings: Settings
    telemetry: facts.Telemetry


class SupersededSnapshots(msgspec.Struct, frozen=True):
    """The snapshots that nothing needs any more once another one is the baseline; the count of pins, which the batch
    that drops them expects; and how old the universe is, which is noted with the new one: 0 if that was not read.
    """

    snapshots: list[StoredSnapshot] = []
    pins_raw: bytes | None = None
    age_us: int = 0


class Divergence(msgspec.Struct, frozen=True):
    """Where a world's code did not do the same again."""

    name: str
    height: int
    message: str
    program_hash: bytes


class HolderJob:
    """One that does nothing: the base of those that features bring, each of which says what it does."""

    # Of its own, which the host starts and stops; None: it starts tasks beside the worker's turns.
    loop: role_loop.Loop | None = None
    # Worlds whose code did not do the same again, the latest last.
    diverged: Mapping[ids.Address, Divergence] = MappingProxyType({})

    def look(self, held: JobWorld) -> None:
        """A world was taken or saved: there may be something to do."""

    async def superseded(self, at: ids.Address, taken: StateSnapshot) -> SupersededSnapshots | None:  # noqa: ARG002
        """Say which snapshots go with this one, in the batch that takes it. None: that is for another job to say."""
        return None

    def labels(self) -> dict[str, str]:
        """What is said with the worker's heartbeat, of all jobs within `limits.JOB_LABELS_BYTES_MAX`."""
        return {}

    def stop(self) -> None:
        """Begin nothing more; what is under way ends soon."""

    async def close(self) -> None:
        """Free what it has, behind the end of its loop."""


MakeHolderJob = Callable[[HolderContext], HolderJob | None]  # None if the settings want none
