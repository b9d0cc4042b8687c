"""Compacting a world by hand, and what would come of it. Workers do so by themselves (`roles/compaction`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from worldline.base import env as envs
from worldline.client.connection import Connection
from worldline.host import holders
from worldline.layers import leases
from worldline.model import ids
from worldline.model.settings import WorkerSettings
from worldline.roles import expiry
from worldline.roles import lease as world_lease
from worldline.roles.compaction import compactor, retention, turns
from worldline.store import kv, transact


class Plan(msgspec.Struct, frozen=True):
    """What a compaction finds. `entries`: those that may be moved, up to `up_to`; `snapshots`: those that are dropped
    then; `held_back`: forks keep it from going further.
    """

    compacted: int
    up_to: int
    entries: int
    snapshots: int
    held_back: bool


async def plan(universe: Connection, at: ids.Address) -> Plan:
    """What would be done now. Nothing is changed."""
    policy = _policy()
    known = (await compactor.survey(universe.store.engine, at)).known
    target = retention.limit(known, policy)
    up_to = known.compacted if target is None else target.height
    dropped = retention.droppable(known, policy, compacted=up_to)
    return Plan(known.compacted, up_to, up_to - known.compacted, len(dropped), retention.is_held_back(known, policy))


async def compact(universe: Connection, at: ids.Address) -> compactor.Compacted:
    """Compact a world that no process runs. `Exists` if a living worker has it: it compacts it by itself."""
    engine, env = universe.store.engine, universe.store.env
    life = await world_lease.beat(
        engine, env, ids.WorkerId(envs.new_id(env)), ids.Incarnation(envs.new_id(env)), WorkerSettings()
    )
    try:
        others = expiry.Witness(env, lambda other: holders.is_gone(universe.store, other))
        lease = await world_lease.acquire(engine, env, at, life, others, anyway=True)
        try:
            work = compactor.Compactor(engine, env, universe.blobs, lease, policy=_policy(), compute=_here)
            return await work.run(now=True)
        finally:  # the release leaves a hint if something is unread
            await world_lease.release(engine, env, lease, mended=True)
    finally:
        batch = kv.Batch()
        leases.goodbye(batch, life)
        await transact.commit(engine, env, batch)


def _policy() -> retention.Policy:
    """That of a worker with the default settings."""
    return turns.policy_of(WorkerSettings())


async def _here(do: Callable[..., Any], *given: Any) -> Any:
    return do(*given)
