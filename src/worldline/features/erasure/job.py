"""Personal values of lineages of which no world is left: they go when the last of these worlds is removed.

A fork has the values that it inherited in the place of the world that its lineage began with, which may be deleted
before it. So it is looked at all worlds there are; only if a lineage with values has lost its first one.
"""

from __future__ import annotations

from worldline.base import env as envs
from worldline.base import probes
from worldline.features.erasure import batches
from worldline.keys import imports
from worldline.keys import worlds as world_keys
from worldline.layers import personal_records
from worldline.layers.history import history_line
from worldline.model import ids
from worldline.store import kv, paging, transact

PAGE = 500


async def sweep(engine: kv.Engine, env: envs.Env, universe: ids.UniverseId) -> int:
    """Remove what no world can read any more. Returns how many lineages that were."""
    lost = await _without_first(engine, universe)
    if lost:
        living = await _roots(engine, universe)
        lost = [each for each in lost if each not in living]
    for each in lost:
        probes.hit("erasure.lineage-left-over")
        await _drop(engine, env, each)
    return len(lost)


async def _without_first(engine: kv.Engine, universe: ids.UniverseId) -> list[ids.Address]:
    """Lineages that have values, and whose first world is not there. One that is being imported is there soon."""
    found: list[ids.Address] = []
    after: ids.Address | None = None
    while True:
        page = (await engine.read(personal_records.next_lineage(universe, after=after))).page(0)
        after = personal_records.decode_next(universe, page)
        if after is None:
            return found
        read = await engine.read(kv.Get(world_keys.index_key(after)), kv.Get(imports.import_key(after)))
        if read.value(0) is None and read.value(1) is None:
            found.append(after)


async def _roots(engine: kv.Engine, universe: ids.UniverseId) -> dict[ids.Address, None]:
    """The worlds that the lineages of all worlds began with."""
    found: dict[ids.Address, None] = {}
    async for page in paging.RangePages(engine, kv.Range(*world_keys.index(universe), count_max=PAGE)):
        worlds = [ids.Address(universe, world_keys.index_world(universe, key)) for key, _ in page.items]
        read = await engine.read(*(history_line.get(at) for at in worlds))
        found |= dict.fromkeys(
            personal_records.root_of(history_line.decode(at, read.value(i))) for i, at in enumerate(worlds)
        )
    return found


async def _drop(engine: kv.Engine, env: envs.Env, root: ids.Address) -> None:
    async def attempt() -> transact.NothingToWrite[None] | transact.Write[None]:
        page = (await engine.read(personal_records.lineage_range(root, count_max=1))).page(0)
        if not page.items:
            return transact.NothingToWrite(None)
        batch = kv.Batch()
        batch.expect(*page.items[0])  # a value has a salt of its own: it is never written again
        batches.drop_lineage(batch, root)
        return transact.Write(batch, lambda _: None)

    await transact.run(engine, env, attempt)
