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
from worldline.roles import lease as world_lease
from worldline.store import kv, transact

PAGE = 500


# --- Workers -------------------------------------------------------------------------------------------------------


async def drain_worker(engine: kv.Engine, env: envs.Env, worker: ids.WorkerId, *, draining: bool) -> leases.Heartbeat:
    """Have a worker emptied, or used again."""
    return await world_lease.drain(engine, env, worker, draining=draining)


async def list_workers(engine: kv.Engine) -> list[leases.Heartbeat]:
    """Every worker of the store that has a heartbeat, expired or not."""
    lives: list[leases.Heartbeat] = []
    after: ids.WorkerId | None = None
    while True:
        found = leases.decode_worker((await engine.read(leases.workers_range(after=after))).page(0))
        if found is None:
            return lives
        after, life = found
        if life is not None:
            lives.append(life)


async def list_worker_worlds(engine: kv.Engine, worker: ids.WorkerId) -> list[tuple[ids.Address, int]]:
    """The worlds that a worker holds, and at which epochs."""
    held: list[tuple[ids.Address, int]] = []
    while True:
        after = held[-1][0] if held else None
        page = (await engine.read(leases.held_range(worker, after=after, count_max=PAGE))).page(0)
        held += leases.decode_held(worker, page)
        if not page.more:
            return held


# --- Leases and placement ------------------------------------------------------------------------------------------


async def revoke_lease(engine: kv.Engine, env: envs.Env, at: ids.Address, *, epoch: int | None = None) -> int:
    """Take the lease from its holder, and leave a hint that the world is free. Returns the epoch it is at now.

    `epoch`: only if it is still held at that epoch. Without, a repeat revokes the lease of the next holder too.
    """

    async def attempt() -> transact.Done[int] | transact.Write[int]:
        read = await engine.read(*leases.reads(at), *trial.reads(at))
        state = leases.decode(at, read.value(0), read.value(1), read.value(2))
        if state.holder is None or (epoch is not None and state.epoch.number != epoch):
            return transact.Done(state.epoch.number)
        batch = kv.Batch()
        leases.revoke(batch, state, token=envs.new_id(env))
        trial.left_behind(batch, trial.decode(at, read.value(3), read.value(4)), epoch=state.epoch.number + 1)
        ready.leave(batch, at, priority=ready.NORMAL)
        return transact.Write(batch, lambda _: state.epoch.number + 1)

    return await transact.run(engine, env, attempt)


async def assign_world(
    engine: kv.Engine, env: envs.Env, at: ids.Address, worker: ids.WorkerId, *, reason: str = "by hand"
) -> None:
    """Say which worker should run a world. If another has it, it lets go. `NotFound` if no such worker takes worlds."""

    async def attempt() -> transact.Done[None] | transact.Write[None]:
        read = await engine.read(*leases.reads(at), leases.get_heartbeat(worker), worlds.get(at))
        worlds.decode(at, read.value(4))
        state = leases.decode(at, read.value(0), read.value(1), read.value(2))
        life = leases.decode_heartbeat(worker, read.value(3))
        if life is None or not life.stands(read.time_us):
            raise errors.NotFound(f"no worker {worker.hex()} is alive and takes worlds")
        if state.assignment is not None and state.assignment.worker == worker:
            return transact.Done(None)
        batch = kv.Batch()
        leases.assign(batch, state, worker, priority=ready.NORMAL, reason=reason)
        ready.leave(batch, at, priority=ready.LATER)
        return transact.Write(batch, lambda _: None)

    await transact.run(engine, env, attempt)


async def unassign_world(engine: kv.Engine, env: envs.Env, at: ids.Address) -> None:
    """Any worker may run the world again."""

    async def attempt() -> transact.Done[None] | transact.Write[None]:
        state = await _lease(engine, at)
        if state.assignment is None:
            return transact.Done(None)
        batch = kv.Batch()
        leases.unassign(batch, state)
        return transact.Write(batch, lambda _: None)

    await transact.run(engine, env, attempt)


# --- Reading -------------------------------------------------------------------------------------------------------


async def _lease(engine: kv.Engine, at: ids.Address) -> leases.State:
    read = await engine.read(*leases.reads(at))
    return leases.decode(at, read.value(0), read.value(1), read.value(2))
