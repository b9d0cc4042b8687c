"""Whether a universe may have more from outside: an input, a message of another universe, a world, a fork that pins.

What runs already is never refused, nor are receipts, timers and messages between worlds of the universe: without them
it could not come below its quota again.

Inputs and messages are judged by what was last counted. For worlds and forks, the check belongs to the batch that makes
the world: it expects the quota's record as it was read, so the number is exact however many are made at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from worldline.base import env as envs
from worldline.base import errors, probes
from worldline.features.quotas import batches, job, quota_metrics, records, world_count
from worldline.kernel.authoring import message_calls
from worldline.model import ids
from worldline.runtime.universe_admission import NewWorld, RefusedMessage
from worldline.store import kv

_ADVICE = {
    "worlds": "delete worlds",
    "bytes": "delete worlds or wait until old entries are dropped, and it is counted again",
    "effects": "wait until some are answered",
    "pins": "wait until the forks have saved a state of their own, or delete some",
}


class QuotaBounds(msgspec.Struct, frozen=True):
    """What a universe may have, and what it had when it was last counted."""

    quota: records.QuotaRecord
    usage: records.Usage | None
    why: ClassVar[str] = quota_metrics.REFUSED

    @property
    def effects_max(self) -> int | None:
        return self.quota.effects

    def refuse_input(self, *, effects: int | None = None) -> errors.QuotaExceeded | None:
        """Refuse an input if the universe had too many bytes when it was last counted, or has too many open effects."""
        quota, used = self.quota, None if self.usage is None else self.usage.bytes
        if quota.bytes is not None and used is not None and used >= quota.bytes:
            return _exceeded("bytes", used=used, limit=quota.bytes)
        if quota.effects is not None and effects is not None and effects >= quota.effects:
            return _exceeded("effects", used=effects, limit=quota.effects)
        return None

    def refuse_message(self) -> RefusedMessage | None:
        """Refuse a message from another universe, by what was last counted."""
        refused = self.refuse_input(effects=None if self.usage is None else self.usage.effects)
        if refused is None:
            return None
        return RefusedMessage(message_calls.OVER_QUOTA, f"that universe is over its quota of {refused.quota}")


class QuotaAdmission:
    """Asks the quota of a universe (`runtime.universe_admission.Admission`)."""

    def reads(self, universe: ids.UniverseId) -> list[kv.Get]:
        return [batches.get(universe), batches.get_usage(universe)]

    def bounds(self, universe: ids.UniverseId, read: Sequence[bytes | None]) -> QuotaBounds:
        raw, raw_usage = read
        return QuotaBounds(batches.decode(universe, raw).quota, batches.decode_usage(raw_usage))

    async def admit(
        self, engine: kv.Engine, env: envs.Env, batch: kv.Batch, world: NewWorld, read: Sequence[bytes | None]
    ) -> None:
        """Let this batch make a world; `QuotaExceeded` if there may be no other, or not of this size."""
        raw, raw_usage = read
        known = batches.decode(world.universe, raw)
        # The last count decides: a new one would read the whole universe for every world that is made.
        refused = QuotaBounds(known.quota, batches.decode_usage(raw_usage)).refuse_input()
        if refused is not None:
            raise refused
        await _count_on(engine, batch, known, world)
        if known.quota.bytes is not None and world.bytes:
            # Counted now: what was counted last may be older than another import.
            used = (await job.count_now(engine, env, world.universe)).bytes or 0
            if used + world.bytes > known.quota.bytes:
                raise _exceeded("bytes", used=used + world.bytes, limit=known.quota.bytes)


async def _count_on(engine: kv.Engine, batch: kv.Batch, known: batches.Quoted, world: NewWorld) -> None:
    """One world more, and one fork that pins, where their number is bounded."""
    quota, record = known.quota, known.record
    counted = record.worlds
    if quota.worlds is not None:
        # The stored number never falls: worlds that were deleted since are found only by counting.
        if counted is None or counted >= quota.worlds:
            probes.hit("quotas.worlds-counted")
            counted = await world_count.count_worlds(engine, world.universe, count_max=quota.worlds)
        if counted >= quota.worlds:
            raise _exceeded("worlds", used=counted, limit=quota.worlds)
        counted += 1
    pinned = record.pins
    if quota.pins is not None and world.pins:
        if pinned is None or pinned >= quota.pins:
            probes.hit("quotas.pins-counted")
            pinned = await world_count.count_pins(engine, world.universe, count_max=quota.pins)
        if pinned >= quota.pins:
            raise _exceeded("pins", used=pinned, limit=quota.pins)
        pinned += 1
    # Only where a number is bounded: else all that make worlds would conflict over this record for nothing.
    if quota.worlds is not None or (quota.pins is not None and world.pins):
        batches.count_on(batch, known, worlds=counted, pins=pinned)


def _exceeded(quota: str, *, used: int, limit: int) -> errors.QuotaExceeded:
    return errors.QuotaExceeded(quota, used=used, limit=limit, advice=_ADVICE[quota])
