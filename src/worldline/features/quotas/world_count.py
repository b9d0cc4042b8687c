"""The worlds of a universe, and its forks that pin, counted by their keys."""

from __future__ import annotations

from collections.abc import Sequence

from worldline.base import limits
from worldline.layers import snapshots, worlds
from worldline.model import ids
from worldline.store import kv, paging

PAGE = 1_000

# `_pinning` reads one range for each world of a page.
assert PAGE <= limits.READ_REQUESTS_MAX


async def count_worlds(engine: kv.Engine, universe: ids.UniverseId, *, count_max: int | None = None) -> int:
    """The worlds that are not deleted. `count_max`: as soon as there are so many, that is the answer."""
    count = 0
    async for page in paging.RangePages(engine, worlds.list_range(universe, count_max=PAGE)):
        count += len(page.items)
        if count_max is not None and count >= count_max:
            break
    return count if count_max is None else min(count, count_max)  # the last page may have more


async def count_pins(engine: kv.Engine, universe: ids.UniverseId, *, count_max: int | None = None) -> int:
    """The forks that need a snapshot of a world that they come from."""
    # A fork may pin several worlds, and counts once.
    forks: dict[ids.WorldId, None] = {}
    async for page in paging.RangePages(engine, worlds.list_range(universe, count_max=PAGE)):
        forks |= dict.fromkeys(await _pinning(engine, worlds.listed_at(universe, page)))
        if count_max is not None and len(forks) >= count_max:
            break
    return len(forks) if count_max is None else min(len(forks), count_max)


async def _pinning(engine: kv.Engine, addresses: Sequence[ids.Address]) -> list[ids.WorldId]:
    """The forks that need something of these worlds."""
    found: list[ids.WorldId] = []
    ranges = [(at, snapshots.pins_range(at, count_max=PAGE)) for at in addresses]
    while ranges:
        read = await engine.read(*(pins for _, pins in ranges))
        pages = [read.page(index) for index in range(len(ranges))]
        found += [
            fork for (at, _), page in zip(ranges, pages, strict=True) for fork, _ in snapshots.decode_pins(at, page)
        ]
        rests = [(at, paging.rest_of(pins, page)) for (at, pins), page in zip(ranges, pages, strict=True)]
        ranges = [(at, rest) for at, rest in rests if rest is not None]
    return found
