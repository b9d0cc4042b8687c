"""Which universes of a store a copy is of."""

from __future__ import annotations

from collections.abc import Sequence

from worldline.base import errors
from worldline.runtime.universes import served_universes
from worldline.runtime.universes.served_universes import Served
from worldline.store import kv


async def universes(engine: kv.Engine, names: Sequence[str] = ()) -> list[Served]:
    """All universes of a store, by name; or those that are named. `NotFound` if one of these is not there."""
    found = await served_universes.read_all(engine)
    if not names:
        return found
    known = {each.name: each for each in found}
    for name in names:
        if name not in known:
            raise errors.NotFound(f"no universe {name!r} in this store; there are {', '.join(known) or 'none'}")
    return [known[name] for name in dict.fromkeys(names)]  # a name that is given twice counts once
