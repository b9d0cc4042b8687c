"""Which universes of a store a copy is of."""

from __future__ import annotations

from collections.abc import Sequence

from worldline.base import errors
from worldline.keys import universes as keys
from worldline.model import ids
from worldline.store import frozen, kv

Found = tuple[str, ids.UniverseId]
PAGE = 1_000


async def universes(engine: kv.Engine | frozen.FrozenEngine, names: Sequence[str] = ()) -> list[Found]:
    """All universes of a store, by name; or those that are named. `NotFound` if one of these is not there."""
    found: list[Found] = []
    begin, end = keys.names()
    more = True
    while more:
        page = (await engine.read(kv.Range(begin, end, count_max=PAGE))).page(0)
        found += [(keys.name_of(key), ids.UniverseId(keys.NAME.unpack(raw).universe)) for key, raw in page.items]
        more = page.more
        begin = page.items[-1][0] + b"\x00" if more else end
    if not names:
        return found
    known = dict(found)
    for name in names:
        if name not in known:
            raise errors.NotFound(f"no universe {name!r} in this store; there are {', '.join(known) or 'none'}")
    return [(name, known[name]) for name in dict.fromkeys(names)]
