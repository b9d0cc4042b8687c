"""A world whose data key was destroyed never runs again: it could not read its own state."""

from __future__ import annotations

from collections.abc import Sequence

from worldline.features.encryption import batches
from worldline.model import ids
from worldline.model.world_records import Status
from worldline.store import kv


class KeptKeyGuard:
    """Refuses to let such a world go on (`StatusGuard`)."""

    def reads(self, at: ids.Address) -> list[kv.Get]:
        return [batches.get(at)]

    def follow(self, batch: kv.Batch, at: ids.Address, status: Status, read: Sequence[bytes | None]) -> None:
        """`KeyDestroyed` if the world is to run. A destroyed key does not come back, so the batch expects nothing."""
        del batch
        if status is Status.ACTIVE:
            batches.check_kept(at, read[0])
