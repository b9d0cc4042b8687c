"""What features add where a person changes what a world is (`client/world_changes.py`): its status, its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from worldline.base import env as envs
from worldline.model import ids
from worldline.model.world_records import Status
from worldline.store import kv


class StatusGuard(Protocol):
    """Asked when a world gets another status by hand, in the batch that changes it."""

    def reads(self, at: ids.Address) -> Sequence[kv.Get]:
        """What it wants to know of the world, read with the rest."""

    def follow(self, batch: kv.Batch, at: ids.Address, status: Status, read: Sequence[bytes | None]) -> None:
        """Add what follows from the change; raise if the world cannot have this status. `read`: of `reads`."""


class RenameWatch(Protocol):
    """Told when a world has got another name."""

    async def renamed(self, engine: kv.Engine, env: envs.Env, at: ids.Address) -> None:
        """Do what follows. The new name is stored already, so a call that is cut off before this leaves it undone."""
