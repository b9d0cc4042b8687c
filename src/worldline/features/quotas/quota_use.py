"""What a universe has, and what it may have, as users see it."""

from __future__ import annotations

import msgspec

from worldline.base import errors
from worldline.features.quotas import batches, records, world_count
from worldline.model import ids
from worldline.runtime import open_effect_count
from worldline.store import kv


class Quota(msgspec.Struct, frozen=True):
    """What a universe may have. None: without bound."""

    worlds: int | None = None
    bytes: int | None = None
    effects: int | None = None
    pins: int | None = None


class QuotaUse(msgspec.Struct, frozen=True):
    """What a universe has, and what it may have. `bytes` is as it was last counted, at `counted_us` by the store's
    clock, and None if it never was; the rest is as it is now.
    """

    worlds: int
    bytes: int | None
    effects: int
    pins: int
    quota: Quota
    counted_us: int | None

    @property
    def exceeded(self) -> list[str]:
        """The quotas that are used up: inputs from outside, or new worlds and forks, are refused."""
        pairs = [(name, getattr(self, name), getattr(self.quota, name)) for name in errors.QUOTA_NAMES]
        return [name for name, used, limit in pairs if used is not None and limit is not None and used >= limit]


async def read(engine: kv.Engine, universe: ids.UniverseId) -> QuotaUse:
    """What there is and may be, the bytes as they were last counted."""
    said = await engine.read(batches.get(universe), batches.get_usage(universe))
    counted = batches.decode_usage(said.value(1))
    known = counted is not None and counted.bytes is not None
    return QuotaUse(
        await world_count.count_worlds(engine, universe),
        None if counted is None else counted.bytes,
        await open_effect_count.count(engine, universe),
        await world_count.count_pins(engine, universe),
        quota_of(batches.decode(universe, said.value(0)).quota),
        counted.time_us if counted is not None and known else None,
    )


def quota_of(record: records.QuotaRecord) -> Quota:
    """The quota of a record, as users see it."""
    return Quota(record.worlds, record.bytes, record.effects, record.pins)
