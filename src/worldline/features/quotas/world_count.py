"""The worlds of a universe, and its forks that pin, counted by their keys."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from worldline.base import limits
from worldline.codec import tuples
from worldline.layers import snapshots, worlds
from worldline.model import ids
from worldline.store import kv

PAGE = 1_000

# `_pinning` reads one range for each world of a page.
assert PAGE <= limits.READ_REQUESTS_MAX


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
