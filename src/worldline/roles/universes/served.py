"""The universes of a store, and those of them that a process serves."""

from __future__ import annotations

import msgspec

from worldline.codec import tuples
from worldline.layers import universes
from worldline.model import ids
from worldline.store import kv

PAGE = 1_000


class Served(msgspec.Struct, frozen=True):
    """A universe that is served. Its name is for people, and for patterns; its id is what its keys begin with."""

    id: ids.UniverseId
    name: str


async def read_all(engine: kv.Engine) -> list[Served]:
    """All universes of a store, by name."""
    found: list[Served] = []
    wanted = universes.names_range(count_max=PAGE)
    while True:
        page = (await engine.read(wanted)).page(0)
        found += [Served(universe, name) for name, universe in universes.decode_names(page)]
        if not page.more:
            return found
        wanted = msgspec.structs.replace(wanted, begin=tuples.successor(page.items[-1][0]))
