"""Copies that are not used yet: a world that was restored or imported is archived until a person lets it go on.

An archived world takes no input, no worker takes it, its timers do not fire and its effects are not tried. The record
says what it was before, and becomes when it is released; without the record, an archived world is just that.
"""

from __future__ import annotations

from collections.abc import Sequence

from worldline.features.copies import dormant_keyspace as keys
from worldline.features.copies import records
from worldline.layers import worlds
from worldline.model import ids
from worldline.model.world_records import Status
from worldline.store import kv


def get(at: ids.Address) -> kv.Get:
    return kv.Get(keys.held_key(at))


def decode(raw: bytes | None) -> records.DormantCopy | None:
    return keys.HELD.get(raw)


def hold(batch: kv.Batch, at: ids.Address, *, status: Status, source: str, time_us: int) -> None:
    """The batch that makes the world, archived, has a guard. One that was archived before stays just that."""
    if status is not Status.ARCHIVED:
        batch.put(keys.held_key(at), keys.HELD.pack(records.DormantCopy(status, source, time_us)))


def release(batch: kv.Batch, world: worlds.WorldRecord, raw: bytes | None) -> worlds.WorldRecord | None:
    """Let a copy become what it was. None if it is none. Guard: the record as it was read, and the world's meta."""
    held = decode(raw)
    if held is None or raw is None:
        return None
    changed = worlds.change(batch, world, status=held.status)
    forget(batch, world.at, raw)
    return changed


def forget(batch: kv.Batch, at: ids.Address, raw: bytes | None) -> None:
    """The world has got another status by hand. The caller changes its meta in the same batch."""
    if raw is not None:
        batch.expect(keys.held_key(at), raw)
        batch.delete(keys.held_key(at))


class DormantCopyGuard:
    """A copy that a person has given another status is no copy that waits (`StatusGuard`)."""

    def reads(self, at: ids.Address) -> list[kv.Get]:
        return [get(at)]

    def follow(self, batch: kv.Batch, at: ids.Address, status: Status, read: Sequence[bytes | None]) -> None:
        """Forget what it was before, whatever it becomes."""
        del status
        forget(batch, at, read[0])
