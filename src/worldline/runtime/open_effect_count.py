"""How many effects of a universe are open, counted in its due queues. Parked ones are not: they wait for a person."""

from __future__ import annotations

from worldline.layers import work as works
from worldline.model import ids
from worldline.runtime import queue_names
from worldline.store import kv, paging

PAGE_POINTERS = 10_000


async def count(engine: kv.Engine, universe: ids.UniverseId, *, count_max: int | None = None) -> int:
    """The effects that wait for an effect worker, or are with one. `count_max`: with so many, counting ends."""
    count = 0
    most = PAGE_POINTERS if count_max is None else min(count_max, PAGE_POINTERS)
    ranges = works.effects_ranges(universe, timers=queue_names.TIMER_QUEUE, count_max=most)
    while ranges and (count_max is None or count < count_max):
        # All queues in one read: the pages of one round are of the same moment.
        read = await engine.read(*ranges)
        pages = [read.page(index) for index in range(len(ranges))]
        count += sum(len(page.items) for page in pages)
        rests = map(paging.rest_of, ranges, pages)
        ranges = [rest for rest in rests if rest is not None]
    return count
