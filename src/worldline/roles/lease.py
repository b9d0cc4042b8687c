"""Leases and heartbeats: taking a world, keeping it, releasing it.

Functions over the store. Each is a protocol of its own: read, build a
batch, commit; a lost race is an expected loss that the caller handles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from worldline.base import env as envs
from worldline.base import errors
from worldline.layers import inbox as inboxes
from worldline.layers import leases, ready, worlds
from worldline.layers import work as works
from worldline.model import ids
from worldline.model.settings import WorkerSettings
from worldline.model.work import WorkState
from worldline.roles import expiry
from worldline.store import kv, transact

CLAIMS_PAGE = 256


async def beat(
    engine: kv.Engine, env: envs.Env, worker: ids.WorkerId, incarnation: ids.Incarnation, settings: WorkerSettings,
    *, labels: dict[str, str] | None = None, told: Callable[[int], None] = lambda _: None,
) -> leases.Heartbeat:  # fmt: skip
    """Write the worker's heartbeat, the first or the next. Whether it is draining is for others to say.

    `told`: gets the store's time as soon as it is read.
    """

    async def attempt() -> transact.Write[leases.Heartbeat]:
        read = await engine.read(leases.get_heartbeat(worker))
        told(read.time_us)
        known = leases.decode_heartbeat(worker, read.value(0))
        draining = known is not None and known.sign.incarnation == incarnation and known.sign.draining
        batch = kv.Batch()
        life = leases.heartbeat(
            batch, worker, before=known, incarnation=incarnation, now_us=read.time_us,
            ttl_us=settings.lease_ttl_ms * 1000, capacity=settings.max_worlds_warm,
            labels=settings.labels if labels is None else labels, draining=draining,
        )  # fmt: skip
        return transact.Write(batch, lambda _: life)

    return await transact.run(engine, env, attempt)


async def say_goodbye(engine: kv.Engine, env: envs.Env, me: leases.Heartbeat) -> None:
    """Delete the heartbeat, whatever others have written into it since."""

    async def attempt() -> transact.Done[None] | transact.Write[None]:
        known = leases.decode_heartbeat(me.worker, (await engine.read(leases.get_heartbeat(me.worker))).value(0))
        if known is None or known.sign.incarnation != me.sign.incarnation:
            return transact.Done(None)
        batch = kv.Batch()
        leases.goodbye(batch, known)
        return transact.Write(batch, lambda _: None)

    await transact.run(engine, env, attempt)


async def drain(engine: kv.Engine, env: envs.Env, worker: ids.WorkerId, *, draining: bool) -> leases.Heartbeat:
    """Have a worker emptied, or used again. `NotFound` if it is not alive."""

    async def attempt() -> transact.Done[leases.Heartbeat] | transact.Write[leases.Heartbeat]:
        read = await engine.read(leases.get_heartbeat(worker))
        life = leases.decode_heartbeat(worker, read.value(0))
        if life is None or not life.alive(read.time_us):
            raise errors.NotFound(f"no worker {worker.hex()} is alive")
        if life.sign.draining == draining:
            return transact.Done(life)
        batch = kv.Batch()
        changed = leases.drain(batch, life, draining=draining)
        return transact.Write(batch, lambda _: changed)

    return await transact.run(engine, env, attempt)


async def acquire(
    engine: kv.Engine, env: envs.Env, at: ids.Address, me: leases.Heartbeat, others: expiry.Witness,
    *, anyway: bool = False,
) -> leases.Lease:  # fmt: skip
    """Take the lease under the next epoch. `Exists` if a living worker has it, or it is wanted by one that stands.

    `anyway`: wherever it is wanted, because it is not to be run but to be mended.
    """

    async def attempt() -> transact.Write[leases.Lease]:
        # Our own heartbeat is read too: the batch expects it, and a heartbeat since the last attempt has changed it.
        read = await engine.read(*leases.reads(at), leases.get_heartbeat(me.worker), worlds.get(at))
        state = leases.decode(at, read.value(0), read.value(1), read.value(2))
        mine = leases.decode_heartbeat(me.worker, read.value(3))
        world = worlds.decode(at, read.value(4))
        fresh = mine if mine is not None and mine.sign.incarnation == me.sign.incarnation else me
        holder_heartbeat = mine
        proven_dead = False
        if state.holder is not None and state.holder.worker != me.worker:
            other = ids.WorkerId(state.holder.worker)
            read = await engine.read(leases.get_heartbeat(other))
            holder_heartbeat = others.look(leases.decode_heartbeat(other, read.value(0)))
            proven_dead = others.is_dead(other)
        void = anyway
        if not anyway and state.assignment is not None and state.assignment.worker != me.worker:
            wanted = ids.WorkerId(state.assignment.worker)
            void = wanted not in await standing(engine, [wanted], others)
        batch = kv.Batch()
        if not anyway:
            worlds.expect_running(batch, world)
        lease = leases.acquire(
            batch,
            state,
            me=fresh,
            holder_heartbeat=holder_heartbeat,
            now_us=read.time_us,
            proven_dead=proven_dead,
            assignment_void=void,
        )
        return transact.Write(batch, lambda _: lease)

    return await transact.run(engine, env, attempt)


async def may_take(
    engine: kv.Engine, states: Sequence[leases.State], me: leases.Heartbeat | None, others: expiry.Witness
) -> list[ids.Address]:
    """Those of these worlds that it makes sense to try for. Most that have a hint are held by other workers, and one
    look at all of them costs less than a try at each.
    """
    named = [each.holder.worker for each in states if each.holder is not None]
    named += [each.assignment.worker for each in states if each.assignment is not None]
    if me is None or not named:
        return [each.at for each in states]
    workers = [ids.WorkerId(worker) for worker in dict.fromkeys(named)]
    read = await engine.read(*(leases.get_heartbeat(worker) for worker in workers))
    lives = {
        worker: others.look(leases.decode_heartbeat(worker, read.value(index))) for index, worker in enumerate(workers)
    }
    dead = [worker for worker in workers if worker != me.worker and others.is_dead(worker)]
    free: list[ids.Address] = []
    for each in states:
        holder = None if each.holder is None else ids.WorkerId(each.holder.worker)
        wanted = None if each.assignment is None else ids.WorkerId(each.assignment.worker)
        life = None if wanted is None else lives[wanted]
        why_not = leases.may_acquire(
            each,
            me=me,
            holder_heartbeat=None if holder is None else lives[holder],
            now_us=read.time_us,
            proven_dead=holder in dead,
            assignment_void=wanted in dead or life is None or not life.stands(read.time_us),
        )
        if why_not is None:
            free.append(each.at)
    return free


async def standing(
    engine: kv.Engine, workers: Sequence[ids.WorkerId], others: expiry.Witness
) -> list[ids.WorkerId]:  # fmt: skip
    """Those of these workers that worlds may be given to."""
    if not workers:
        return []
    read = await engine.read(*(leases.get_heartbeat(worker) for worker in workers))
    lives = [others.look(leases.decode_heartbeat(worker, read.value(index))) for index, worker in enumerate(workers)]
    standing = [life.worker for life in lives if life is not None and life.stands(read.time_us)]
    return [worker for worker in standing if not others.is_dead(worker)]


async def release(engine: kv.Engine, env: envs.Env, lease: leases.Lease, *, hint: bool = False) -> None:
    """Let go of a lease, and leave a hint if something is unread, or if a `hint` is wanted whatever there is.

    A lease that has moved on is left as it is.
    """
    read = await engine.read(inboxes.read_range(lease.at, count_max=1))
    unread = bool(read.page(0).items)
    batch = kv.Batch()
    leases.release(batch, lease)
    if unread or hint:  # in the same batch, so that a worker which sees the hint can take the world
        ready.leave(batch, lease.at, priority=ready.NORMAL if unread else ready.LATER)
    await transact.commit(engine, env, batch)


async def take_back_claims(
    engine: kv.Engine, env: envs.Env, at: ids.Address, is_dead: Callable[[ids.WorkerId], bool]
) -> int:
    """Work of this world that a dead process has claimed is due again at once, not when its claim runs out."""
    known: dict[bytes, bool] = {}
    count = 0
    after: ids.IntentId | None = None
    while True:
        read = await engine.read(works.open_range(at, after=after, count_max=CLAIMS_PAGE))
        found = works.decode_open(at, read.page(0))
        batches = []
        for opened in found:
            claimant = opened.work.worker
            if opened.work.state is not WorkState.CLAIMED:
                continue
            if claimant not in known:
                known[claimant] = is_dead(ids.WorkerId(claimant))
            if known[claimant]:
                batch = kv.Batch()
                works.take_back(batch, opened, now_us=read.time_us)
                batches.append(batch)
        if batches:
            await transact.commit(engine, env, *batches)  # a conflict means that another process has it already
        count += len(batches)
        if not read.page(0).more:
            return count
        after = found[-1].intent
