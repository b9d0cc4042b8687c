"""Holds: while one stands, no collection deletes anything of a universe. For a process that copies a store that is in
use.
"""

from __future__ import annotations

from worldline.base import env as envs
from worldline.base import errors
from worldline.features.collection import batches
from worldline.layers import age
from worldline.model import ids
from worldline.store import kv, transact

TTL_MS = 300_000  # unless told otherwise: renew it well before


async def take(engine: kv.Engine, env: envs.Env, universe: ids.UniverseId, *, what: str, ttl_ms: int = TTL_MS) -> bytes:
    """Keep everything that is there. Returns the id under which the hold is renewed and released. `what`: for people.

    It stands when this returns, and for so long.
    """
    # The id is made once, outside of the retried batch: a repeated attempt renews the same hold.
    id = envs.new_id(env)
    await _write(engine, env, universe, id, what=what, ttl_ms=ttl_ms)
    return id


async def renew(engine: kv.Engine, env: envs.Env, universe: ids.UniverseId, id: bytes, *, ttl_ms: int = TTL_MS) -> None:
    """Keep the hold for so long from now. `NotFound` if it has expired: what was there may be gone, so begin again."""
    read = await engine.read(batches.get_holds(universe), age.get(universe))
    now = age.decode(read.value(1))
    # The holds are read twice: here to find the text, and in the attempt to decide.
    standing = batches.decode_holds(universe, read.value(0)).standing(read.time_us, now)
    what = next((each.what for each in standing if each.id == id), None)
    if what is None:
        raise errors.NotFound(f"hold {id.hex()} has expired: what it kept may be gone, so begin again")
    await _write(engine, env, universe, id, what=what, ttl_ms=ttl_ms, only_renew=True)


async def release(engine: kv.Engine, env: envs.Env, universe: ids.UniverseId, id: bytes) -> None:
    """Give a hold up. One that has expired needs no release."""

    async def attempt() -> transact.NothingToWrite[None] | transact.Write[None]:
        found = batches.decode_holds(universe, (await engine.read(batches.get_holds(universe))).value(0))
        batch = kv.Batch()
        if not batches.release(batch, found, id):
            return transact.NothingToWrite(None)
        return transact.Write(batch, lambda _: None)

    await transact.run(engine, env, attempt)


async def _write(
    engine: kv.Engine,
    env: envs.Env,
    universe: ids.UniverseId,
    id: bytes,
    *,
    what: str,
    ttl_ms: int,
    only_renew: bool = False,
) -> None:
    async def attempt() -> transact.NothingToWrite[None] | transact.Write[None]:
        read = await engine.read(batches.get_holds(universe), age.get(universe))
        found, now = batches.decode_holds(universe, read.value(0)), age.decode(read.value(1))
        # It can expire between the read of the caller and this attempt; a new hold would not cover what went meanwhile.
        if only_renew and all(each.id != id for each in found.standing(read.time_us, now)):
            raise errors.NotFound(f"hold {id.hex()} has expired: what it kept may be gone, so begin again")
        batch = kv.Batch()
        batches.hold(batch, found, id, what=what, time_us=read.time_us, now=now, ttl_ms=ttl_ms)
        return transact.Write(batch, lambda _: None)

    await transact.run(engine, env, attempt)
