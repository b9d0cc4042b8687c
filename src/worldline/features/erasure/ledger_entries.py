"""The ledger of erasures in a store: read whole, and given entries of another ledger."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from worldline.base import env as envs
from worldline.features.erasure import batches
from worldline.features.erasure.records import LedgerEntry
from worldline.store import kv, paging, transact

PAGE = 500


async def read_all(engine: kv.Engine) -> list[LedgerEntry]:
    """In the order of their times."""
    return batches.decode([item async for item in paging.RangeItems(engine, batches.every_entry(count_max=PAGE))])


def merged(*ledgers: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """Each entry once, in the order of their times."""
    # Structs with lists have no hash, so entries are compared by their bytes.
    every = {msgspec.msgpack.encode(entry): entry for each in ledgers for entry in each}
    # Two of one microsecond have a fixed order, too
    return [every[key] for key in sorted(every, key=lambda key: (every[key].time_us, key))]


async def add(engine: kv.Engine, env: envs.Env, entries: Sequence[LedgerEntry]) -> int:
    """Take up entries of another ledger, those that this one does not have. Returns how many these are."""
    known = {msgspec.msgpack.encode(each): None for each in await read_all(engine)}
    new = [each for each in merged(entries) if msgspec.msgpack.encode(each) not in known]
    for entry in new:
        batch = kv.Batch()
        batches.add(batch, entry)
        # The guard: an entry never changes, so its absence is all that there is to expect.
        for key in batch.puts:
            batch.absent(key)
        await transact.commit(engine, env, batch)  # a conflict: another process has added it
    return len(new)
