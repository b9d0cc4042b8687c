"""What a process with a janitor does for its store as a whole, and not for each universe that it serves."""

from __future__ import annotations

from typing import Protocol

import msgspec

from worldline.base import env as envs
from worldline.model.settings import JanitorSettings
from worldline.runtime import facts
from worldline.runtime.universes.served_universes import Universes
from worldline.store import kv
from worldline.store.objects import objects_interface as objects


class StoreContext(msgspec.Struct, frozen=True, kw_only=True):
    """What jobs and roles of the store work with. `bodies`: None if there are no objects; `universes`: those that this
    process serves.
    """

    engine: kv.Engine
    env: envs.Env
    bodies: objects.Objects | None
    universes: Universes
    settings: JanitorSettings
    telemetry: facts.Telemetry


class JanitorRole(Protocol):
    """What has a loop of its own in each process with a janitor, because its turns come at times of their own."""

    name: str

    def wake(self) -> None: ...

    async def tick(self) -> None: ...

    async def close(self) -> None: ...
