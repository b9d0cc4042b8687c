"""What operators do to a running cluster, each as one call: workers, leases, placement.

The roles do these things as parts of larger commits; here each call reads, builds a batch with the layers and commits
it.

Every call may be repeated. A caller that has lost the answer makes the same call again and gets the first one's result:
what is done already is not done twice. Refusals are typed.
"""

from __future__ import annotations

from worldline.base import env as envs
from worldline.base import errors
from worldline.layers import leases, ready, trial, worlds
from worldline.model import ids
from worldline.runtime import lease_calls as world_lease
from worldline.runtime import placement, worker_labels, worker_walk
from worldline.store import kv, paging, transact

PAGE = 500
BY_HAND = "by hand"  # the reason of an assignment that an operator made
FENCES = 200  # leases that are changed by one commit


# --- Workers -------------------------------------------------------------------------------------------------------


async def drain_worker(
    engine: kv.Engine, env: envs.Env, worker: ids.WorkerId, *, draining: bool
) -> leases.HeartbeatRecord:
    """Have a worker emptied, or used again."""
    return await world_lease.drain(engine, env, worker, draining=draining)


async def list_workers(engine: kv.Engine) -> list[leases.HeartbeatRecord]:
    """Every worker of the store that has a heartbeat, expired or not."""
    return [life async for _, life in worker_walk.WorkerWalk(engine) if life is not None]


async def list_worker_worlds(engine: kv.Engine, worker: ids.WorkerId) -> list[tuple[ids.Address, int]]:
    """The worlds that a worker holds, and at which epochs."""
    pages = paging.RangePages(engine, leases.held_range(worker, count_max=PAGE))
    return [each async for page in pages for each in leases.decode_held(worker, page)]


async def fence_holders(
    engine: kv.Engine, env: envs.Env, universe: ids.UniverseId, *, only: ids.Address | None = None
) -> int:
    """Have every holder of a world in a universe, or of one world alone, bring it back before it writes again. Returns
    how many there were.

    A world that is acquired meanwhile is no concern of this: its holder reads what has changed after that. So a
    conflict, too, means that nothing is left to do.
    """
    count = 0
    # Also without a heartbeat: a process that is counted as dead may write yet.
    async for worker, _ in worker_walk.WorkerWalk(engine):
        count += await _fence_worker(engine, env, worker, universe, only)
    return count


async def _fence_worker(
    engine: kv.Engine, env: envs.Env, worker: ids.WorkerId, universe: ids.UniverseId, only: ids.Address | None
) -> int:
    count = 0
    async for page in paging.RangePages(engine, leases.held_in_range(worker, universe, count_max=FENCES)):
        held = [at for at, _ in leases.decode_held(worker, page)]
        read = await engine.read(*(each for at in held if only in (None, at) for each in leases.reads(at)))
        batches: list[kv.Batch] = []
        for index, at in enumerate(at for at in held if only in (None, at)):
            epoch, holder, assignment = (read.value(3 * index + each) for each in range(3))
            state = None if epoch is None else leases.decode(at, epoch, holder, assignment)
            if state is not None and state.holder is not None:
                batches.append(kv.Batch())
                leases.fence_off(batches[-1], state, token=envs.new_id(env))
        if batches:
            await transact.commit(engine, env, *batches)
            count += len(batches)
    return count


# --- Leases and placement ------------------------------------------------------------------------------------------


async def revoke_lease(engine: kv.Engine, env: envs.Env, at: ids.Address, *, epoch: int | None = None) -> int:
    """Take the lease from its holder, and leave a hint that the world is free. Returns the epoch it is at now.

    `epoch`: only if it is still held at that epoch. Without, a repeat revokes the lease of the next holder too.
    """

    async def attempt() -> transact.NothingToWrite[int] | transact.Write[int]:
        read = await engine.read(*leases.reads(at), *trial.reads(at))
        state = leases.decode(at, read.value(0), read.value(1), read.value(2))
        if state.holder is None or (epoch is not None and state.epoch.number != epoch):
            return transact.NothingToWrite(state.epoch.number)
        batch = kv.Batch()
        leases.revoke(batch, state, token=envs.new_id(env))
        # Its holder has not released it, so the next one takes it on trial.
        trial.left_behind(batch, trial.decode(at, read.value(3), read.value(4)), epoch=state.epoch.number + 1)
        ready.leave(batch, at, priority=ready.NORMAL)
        return transact.Write(batch, lambda _: state.epoch.number + 1)

    return await transact.run(engine, env, attempt)


async def assign_world(
    engine: kv.Engine,
    env: envs.Env,
    at: ids.Address,
    worker: ids.WorkerId,
    *,
    reason: str = BY_HAND,
    priority: int = ready.NORMAL,
) -> None:
    """Say which worker should run a world. If another has it, that one releases it. `NotFound` if no such worker takes
    worlds, `BadInput` if it cannot run this one. `priority`: a worker takes those with the lowest first.
    """

    async def attempt() -> transact.NothingToWrite[None] | transact.Write[None]:
        read = await engine.read(*leases.reads(at), leases.get_heartbeat(worker), worlds.get(at))
        world = worlds.decode(at, read.value(4))
        state = leases.decode(at, read.value(0), read.value(1), read.value(2))
        life = leases.decode_heartbeat(worker, read.value(3))
        # An assignment to a worker that takes no worlds is void, and would look as if it counted.
        if life is None or not life.stands(read.time_us):
            raise errors.NotFound(f"no worker {worker.hex()} is alive and takes worlds")
        unfit = worker_labels.unfit(at, world.meta, life.sign.labels)
        if unfit is not None:
            name = life.sign.labels.get(placement.NAME) or worker.hex()[:8]
            raise errors.BadInput(
                f"worker {name!r} cannot run world {world.meta.name!r}: it {unfit}; see `worldline worker list`"
            )
        if state.assignment is not None and (state.assignment.worker, state.assignment.priority) == (worker, priority):
            return transact.NothingToWrite(None)
        batch = kv.Batch()
        leases.assign(batch, state, worker, priority=priority, reason=reason)
        # By this hint the holder and the new worker learn of it at once.
        ready.leave(batch, at, priority=ready.LATER)
        return transact.Write(batch, lambda _: None)

    await transact.run(engine, env, attempt)


async def unassign_world(engine: kv.Engine, env: envs.Env, at: ids.Address) -> None:
    """Any worker may run the world again."""

    async def attempt() -> transact.NothingToWrite[None] | transact.Write[None]:
        state = await _lease(engine, at)
        if state.assignment is None:
            return transact.NothingToWrite(None)
        batch = kv.Batch()
        leases.unassign(batch, state)
        return transact.Write(batch, lambda _: None)

    await transact.run(engine, env, attempt)


# --- Reading -------------------------------------------------------------------------------------------------------


async def _lease(engine: kv.Engine, at: ids.Address) -> leases.LeaseState:
    read = await engine.read(*leases.reads(at))
    return leases.decode(at, read.value(0), read.value(1), read.value(2))
