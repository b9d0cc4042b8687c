"""What a universe may have: looking at its quota, and changing it."""

from __future__ import annotations

from typing import Any

import msgspec

from worldline.base import errors, limits
from worldline.client.connection import Connection
from worldline.features.quotas import batches, job, quota_use
from worldline.features.quotas.quota_use import Quota, QuotaUse
from worldline.model import ids
from worldline.runtime import store_opening
from worldline.store import kv, transact

# A value of its own, because None means without bound.
KEEP: Any = "keep"  # this bound stays as it is


class QuotaChange(msgspec.Struct, frozen=True):
    """One change of a quota: what it was from then on. Changes are counted from 1."""

    change: int
    quota: Quota
    time_us: int


async def change(
    connection: Connection,
    *,
    worlds: int | None = KEEP,
    bytes: int | None = KEEP,
    effects: int | None = KEEP,
    pins: int | None = KEEP,
) -> bool:
    """Change what is named; None takes a bound away. False if it was so already."""
    given = {"worlds": worlds, "bytes": bytes, "effects": effects, "pins": pins}
    wanted = {name: _checked(name, value) for name, value in given.items() if value is not KEEP}
    engine = connection.store.engine

    async def attempt() -> transact.NothingToWrite[bool] | transact.Write[bool]:
        read = await engine.read(batches.get(connection.id))
        known = batches.decode(connection.id, read.value(0))
        changed = msgspec.structs.replace(known.quota, **wanted)
        if changed == known.quota:
            return transact.NothingToWrite(False)
        batch = kv.Batch()
        batches.change(batch, known, changed, time_us=read.time_us)
        return transact.Write(batch, lambda _: True)

    return await transact.run(engine, connection.store.env, attempt)


async def use(store: store_opening.Store, universe: ids.UniverseId, *, count: bool = False) -> QuotaUse:
    """What there is and may be. `count`: also count the bytes now, which reads all of the universe."""
    engine = store.engine
    if count:
        # First, so that the answer below shows what was counted now.
        await job.count_now(engine, store.env, universe)
    return await quota_use.read(engine, universe)


async def changes(connection: Connection) -> list[QuotaChange]:
    """The last changes, the newest first."""
    wanted = batches.log_range(connection.id, count_max=limits.QUOTA_CHANGES_SHOWN_MAX)
    found = batches.decode_log((await connection.store.engine.read(wanted)).page(0))
    return [QuotaChange(each.change, quota_use.quota_of(each.quota), each.time_us) for each in found]


def _checked(name: str, value: Any) -> int | None:
    # In Python, `True` is an integer, too.
    if value is not None and (
        not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limits.QUOTA_MAX
    ):
        raise errors.BadInput(
            f"a quota of {name} is a whole number from 0 to {limits.QUOTA_MAX}, or None; not {value!r}"
        )
    found: int | None = value
    return found
