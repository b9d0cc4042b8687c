"""Compacting a world by hand, and what would come of it. Workers do so by themselves (`features/compaction`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from worldline.base import env as envs
from worldline.client.connection import Connection
from worldline.features.compaction import compactor, retention_rules, segment_expiry
from worldline.features.compaction.universe_retention import Policies
from worldline.layers import leases
from worldline.model import ids, setting_names
from worldline.model.settings import WorkerSettings
from worldline.runtime import death_witness, world_holders
from worldline.runtime import lease_calls as world_lease
from worldline.store import kv, transact


class CompactionPlan(msgspec.Struct, frozen=True):
    """What a compaction finds. `entries`: those that may be moved, up to `up_to`; `dropped`: the heights of the
    snapshots that go then; `expired`: the entries that are not kept any more; `held_back`: forks keep it from going
    further. `policy`: what is kept, by the names of settings.
    """

    compacted: int
    up_to: int
    entries: int
    snapshots: int
    held_back: bool
    dropped: list[int]
    expired: int
    policy: dict[str, int | bool]


async def plan(universe: Connection, at: ids.Address) -> CompactionPlan:
    """What would be done now. Nothing is changed."""
    engine = universe.store.engine
    found = await compactor.survey(engine, at)
    known, worker = found.known, found.settings.worker(universe.settings.worker)
    policy = retention_rules.aged(retention_rules.policy_of(worker), known, found.now)
    target = retention_rules.limit(known, policy)
    up_to = known.compacted if target is None else target.height
    dropped = [each.record.height for each in retention_rules.droppable(known, policy, compacted=up_to)]
    old = await segment_expiry.oldest(engine, segment_expiry.Ends(universe.blobs), at, known, policy, now=found.now)
    return CompactionPlan(
        known.compacted,
        up_to,
        up_to - known.compacted,
        len(dropped),
        retention_rules.is_held_back(known, policy),
        dropped,
        0 if old is None else old.entries,
        {name: getattr(worker, setting_names.ALL[name].field) for name in setting_names.RETENTION},
    )


async def compact(universe: Connection, at: ids.Address) -> compactor.CompactionResult:
    """Compact a world that no process runs. `Exists` if a living worker has it: it compacts it by itself."""
    engine, env = universe.store.engine, universe.store.env
    life = await world_lease.beat(
        engine, env, ids.WorkerId(envs.new_id(env)), ids.Incarnation(envs.new_id(env)), WorkerSettings()
    )
    try:
        others = death_witness.DeathWitness(env, lambda other: world_holders.is_gone(universe.store, other))
        lease = await world_lease.acquire(engine, env, at, life, others, anyway=True)
        try:
            # By hand: what this process was set to must not become the policy of the universe.
            policies = Policies(engine, env, universe.settings.worker, hosts=False)
            work = compactor.Compactor(engine, env, universe.blobs, lease, policies=policies, compute=_here)
            return await work.run(now=True)
        finally:  # the release leaves a hint if something is unread
            await world_lease.release(engine, env, lease, mended=True)
    finally:
        # Without this, others would count a worker that has ended as alive until its heartbeat is too old.
        batch = kv.Batch()
        leases.goodbye(batch, life)
        await transact.commit(engine, env, batch)


async def _here(do: Callable[..., Any], *arguments: Any) -> Any:
    return do(*arguments)  # no steps of worlds wait for this thread
