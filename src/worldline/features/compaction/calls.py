"""Compacting a world by hand, and what would come of it. Workers do so by themselves (`features/compaction`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from worldline.client.connection import Connection
from worldline.features.compaction import compactor, retention_rules, segment_expiry
from worldline.features.compaction.universe_retention import Policies
from worldline.model import ids, setting_names
from worldline.runtime import death_witness, world_holders
from worldline.runtime import lease_calls as world_lease


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


async def plan(connection: Connection, at: ids.Address) -> CompactionPlan:
    """What would be done now. Nothing is changed."""
    engine = connection.store.engine
    found = await compactor.survey(engine, at)
    known, worker = found.known, found.settings.worker(connection.settings.worker)
    policy = retention_rules.aged(retention_rules.policy_of(worker), known, found.now)
    target = retention_rules.limit(known, policy)
    up_to = known.compacted if target is None else target.height
    dropped = [each.record.height for each in retention_rules.droppable(known, policy, compacted=up_to)]
    old = await segment_expiry.oldest(engine, segment_expiry.Ends(connection.blobs), at, known, policy, now=found.now)
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


async def compact(connection: Connection, at: ids.Address) -> compactor.CompactionResult:
    """Compact a world that no process runs. `Exists` if a living worker has it: it compacts it by itself."""
    engine, env = connection.store.engine, connection.store.env
    others = death_witness.DeathWitness(env, lambda other: world_holders.is_gone(connection.store, other))
    async with world_lease.held_for_repair(engine, env, at, others) as lease:
        # By hand: what this process was set to must not become the policy of the universe.
        policies = Policies(engine, env, connection.settings.worker, hosts=False)
        work = compactor.Compactor(engine, env, connection.blobs, lease, policies=policies, compute=_here)
        return await work.run(now=True)


async def _here(do: Callable[..., Any], *arguments: Any) -> Any:
    return do(*arguments)  # no steps of worlds wait for this thread
