"""The attempts at effects of a run, from outside: of those that are open by their own records, of those that have an
answer by what the step kept that took it. Needs no program.
"""

from __future__ import annotations

from worldline.client.world_handle import Handle
from worldline.keys import work as work_keys
from worldline.layers import work as works
from worldline.model.work import EffectHistory
from worldline.runtime import attempt_history, traceback_reader
from worldline.store import kv, paging


async def of_run(world: Handle, run_id: str) -> list[EffectHistory]:
    """The newest first, those that are open before the others. An effect that succeeded at once has none."""
    connection, at = world.connection, await world.address()
    begin, end = work_keys.open_work(at)
    opened = [
        works.Open(at, work_keys.open_intent(at, key), work_keys.WORK.unpack(raw), raw)
        async for key, raw in paging.RangeItems(connection.store.engine, kv.Range(begin, end))
    ]
    # Only what was tried: an effect that waits for its first attempt has no history yet.
    found = [each for each in opened if each.work.correlation == run_id and each.work.tried]
    found.sort(key=lambda each: (each.work.step, each.work.ordinal), reverse=True)
    kept = await traceback_reader.of_world(connection.store.engine, at)
    return [*(works.history(each) for each in found), *attempt_history.of_run(kept, run_id)]
