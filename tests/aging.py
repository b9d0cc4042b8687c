"""A universe that is older by so much, as if a janitor had counted it."""

from __future__ import annotations

from worldline.keys import age as keys
from worldline.layers import age
from worldline.model import ids
from worldline.model.age import Age
from worldline.store import kv


async def older(engine: kv.Engine, universe: ids.UniverseId, by_us: int) -> Age:
    """Returns how old it is now."""
    found = age.state(universe, (await engine.read(age.get(universe))).value(0))
    after = Age(found.age.age_us + by_us, found.age.step_us)
    batch = kv.Batch()
    if found.raw is None:
        batch.absent(keys.age_key(universe))
    else:
        batch.expect(keys.age_key(universe), found.raw)
    batch.put(keys.age_key(universe), keys.AGE.pack(after))
    [outcome] = await engine.commit(batch)
    assert isinstance(outcome, kv.Ok)
    return after


async def of(engine: kv.Engine, universe: ids.UniverseId) -> Age:
    return age.decode((await engine.read(age.get(universe))).value(0))
