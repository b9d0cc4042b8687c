"""Whether a universe may have one world more, or one fork more that pins.

Only what comes from external systems is asked about: worlds that are made, and forks. What runs already is never
refused, nor are receipts, timers and messages between worlds of the universe: without them it could not come below its
quota again.

The check belongs to the batch that makes the world: it expects the quota's record as it was read, so the number is
exact however many are made at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from worldline.base import errors, limits, probes
from worldline.codec import tuples
from worldline.features.quotas import batches
from worldline.layers import snapshots, worlds
from worldline.layers import work as works
from worldline.model import ids
from worldline.model import world_records as model
from worldline.runtime import queue_names
from worldline.store import kv

PAGE = 1_000
PAGE_POINTERS = 10_000

# `_pinning` reads one range for each world of a page.
assert PAGE <= limits.READ_REQUESTS_MAX

ADVICE = {
    "worlds": "delete worlds",
    "bytes": "delete worlds or wait until old entries are dropped, and it is counted again",
    "effects": "wait until some are answered",
    "pins": "wait until the forks have saved a state of their own, or delete some",
}


def reads(universe: ids.UniverseId) -> list[kv.Get]:
    """What to read for `check`, in one snapshot."""
    return [batches.get(universe), batches.get_usage(universe)]


def exceeded(quota: str, *, used: int, limit: int) -> errors.QuotaExceeded:
    return errors.QuotaExceeded(quota, used=used, limit=limit, advice=ADVICE[quota])


def check_bytes(quota: model.QuotaRecord, usage: model.Usage | None) -> None:
    """Refuse if the universe had too many bytes when it was last counted."""
    used = None if usage is None else usage.bytes
    if quota.bytes is not None and used is not None and used >= quota.bytes:
        raise exceeded("bytes", used=used, limit=quota.bytes)


def check_effects(quota: model.QuotaRecord, used: int) -> None:
    """Refuse if the universe has too many open effects."""
    if quota.effects is not None and used >= quota.effects:
        raise exceeded("effects", used=used, limit=quota.effects)


def check_message(quota: model.QuotaRecord, usage: model.Usage | None) -> None:
    """Refuse a message from another universe, by what was last counted."""
    check_bytes(quota, usage)
    if usage is not None:
        check_effects(quota, usage.effects)


async def check(
    engine: kv.Engine,
    batch: kv.Batch,
    universe: ids.UniverseId,
    raw: bytes | None,
    raw_usage: bytes | None,
    *,
    pins: bool = False,
) -> None:
    """Let this batch make a world, which is a fork that pins or not; `QuotaExceeded` if there may be no other."""
    known = batches.decode(universe, raw)
    quota, record = known.quota, known.record
    # The last count decides: a new one would read the whole universe for every world that is made.
    check_bytes(quota, batches.decode_usage(raw_usage))
    counted = record.worlds
    if quota.worlds is not None:
        # The stored number never falls: worlds that were deleted since are found only by counting.
        if counted is None or counted >= quota.worlds:
            probes.hit("quotas.worlds-counted")
            counted = await count_worlds(engine, universe, count_max=quota.worlds)
        if counted >= quota.worlds:
            raise exceeded("worlds", used=counted, limit=quota.worlds)
        counted += 1
    pinned = record.pins
    if quota.pins is not None and pins:
        if pinned is None or pinned >= quota.pins:
            probes.hit("quotas.pins-counted")
            pinned = await count_pins(engine, universe, count_max=quota.pins)
        if pinned >= quota.pins:
            raise exceeded("pins", used=pinned, limit=quota.pins)
        pinned += 1
    # Only where a number is bounded: else all that make worlds would conflict over this record for nothing.
    if quota.worlds is not None or (quota.pins is not None and pins):
        batches.count_on(batch, known, worlds=counted, pins=pinned)


async def count_worlds(engine: kv.Engine, universe: ids.UniverseId, *, count_max: int | None = None) -> int:
    """The worlds that are not deleted. `count_max`: as soon as there are so many, that is the answer."""
    count = 0
    after: ids.WorldId | None = None
    while count_max is None or count < count_max:
        page = (await engine.read(worlds.list_range(universe, after=after, count_max=PAGE))).page(0)
        count += len(page.items)
        if not page.more:
            break
        after = worlds.listed_at(universe, page)[-1].world
    return count if count_max is None else min(count, count_max)  # the last page may have more


async def count_pins(engine: kv.Engine, universe: ids.UniverseId, *, count_max: int | None = None) -> int:
    """The forks that need a snapshot of a world that they come from."""
    # A fork may pin several worlds, and counts once.
    forks: dict[ids.WorldId, None] = {}
    after: ids.WorldId | None = None
    while count_max is None or len(forks) < count_max:
        page = (await engine.read(worlds.list_range(universe, after=after, count_max=PAGE))).page(0)
        listed = worlds.listed_at(universe, page)
        forks |= dict.fromkeys(await _pinning(engine, listed))
        if not page.more:
            break
        after = listed[-1].world
    return len(forks) if count_max is None else min(len(forks), count_max)


async def count_effects(engine: kv.Engine, universe: ids.UniverseId, *, count_max: int | None = None) -> int:
    """The effects that wait for an adapter, or are with one. Parked ones wait for a person, and are not counted."""
    count = 0
    most = PAGE_POINTERS if count_max is None else min(count_max, PAGE_POINTERS)
    ranges = works.effects_ranges(universe, timers=queue_names.TIMER_QUEUE, count_max=most)
    while ranges and (count_max is None or count < count_max):
        # All queues in one read: the pages of one round are of the same moment.
        read = await engine.read(*ranges)
        following: list[kv.Range] = []
        for index, each in enumerate(ranges):
            page = read.page(index)
            count += len(page.items)
            if page.more:
                following.append(msgspec.structs.replace(each, begin=tuples.successor(page.items[-1][0])))
        ranges = following
    return count


async def _pinning(engine: kv.Engine, addresses: Sequence[ids.Address]) -> list[ids.WorldId]:
    """The forks that need something of these worlds."""
    found: list[ids.WorldId] = []
    ranges = [(at, snapshots.pins_range(at, count_max=PAGE)) for at in addresses]
    while ranges:
        read = await engine.read(*(wanted for _, wanted in ranges))
        following: list[tuple[ids.Address, kv.Range]] = []
        for index, (at, wanted) in enumerate(ranges):
            page = read.page(index)
            found += [fork for fork, _ in snapshots.decode_pins(at, page)]
            if page.more:
                begin = tuples.successor(page.items[-1][0])
                following.append((at, msgspec.structs.replace(wanted, begin=begin)))
        ranges = following
    return found
