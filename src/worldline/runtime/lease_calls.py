"""Leases and heartbeats: taking a world, keeping it, releasing it.

Functions over the store. Each is a protocol of its own: read, build a
batch, commit; a lost race is an expected loss that the caller handles.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec

from worldline.base import env as envs
from worldline.base import errors
from worldline.layers import inbox as inboxes
from worldline.layers import leases, ready, trial, worlds
from worldline.layers import work as works
from worldline.model import ids
from worldline.model import leases as lease_model
from worldline.model.settings import WorkerSettings
from worldline.model.work import WorkState
from worldline.runtime import death_witness, quarantine, worker_labels
from worldline.runtime import facts as telemetry
from worldline.store import kv, paging, transact

CLAIMS_PAGE = 256
DEFAULT_BUDGET = quarantine.budget_of(WorkerSettings())


async def beat(
    engine: kv.Engine,
    env: envs.Env,
    worker: ids.WorkerId,
    incarnation: ids.Incarnation,
    settings: WorkerSettings,
    *,
    labels: dict[str, str] | None = None,
    told: Callable[[int], None] = lambda _: None,
) -> leases.HeartbeatRecord:
    """Write the worker's heartbeat, the first or the next. Whether it is draining is for others to say.

    `told`: gets the store's time as soon as it is read.
    """

    async def attempt() -> transact.Write[leases.HeartbeatRecord]:
        read = await engine.read(leases.get_heartbeat(worker))
        told(read.time_us)
        known = leases.decode_heartbeat(worker, read.value(0))
        # Only of this very process: an earlier one under the same id was told to drain, and has ended.
        draining = known is not None and known.sign.incarnation == incarnation and known.sign.draining
        batch = kv.Batch()
        life = leases.heartbeat(
            batch,
            worker,
            last=known,
            incarnation=incarnation,
            now_us=read.time_us,
            ttl_us=settings.lease_ttl_ms * 1000,
            capacity=settings.max_worlds_warm,
            labels=settings.labels if labels is None else labels,
            draining=draining,
        )
        return transact.Write(batch, lambda _: life)

    return await transact.run(engine, env, attempt)


async def say_goodbye(engine: kv.Engine, env: envs.Env, me: leases.HeartbeatRecord) -> None:
    """Delete the heartbeat, whatever others have written into it since."""

    async def attempt() -> transact.NothingToWrite[None] | transact.Write[None]:
        known = leases.decode_heartbeat(me.worker, (await engine.read(leases.get_heartbeat(me.worker))).value(0))
        # Another process has taken the id since; its heartbeat is not ours to delete.
        if known is None or known.sign.incarnation != me.sign.incarnation:
            return transact.NothingToWrite(None)
        batch = kv.Batch()
        leases.goodbye(batch, known)
        return transact.Write(batch, lambda _: None)

    await transact.run(engine, env, attempt)


async def drain(engine: kv.Engine, env: envs.Env, worker: ids.WorkerId, *, draining: bool) -> leases.HeartbeatRecord:
    """Have a worker emptied, or used again. `NotFound` if it is not alive."""

    async def attempt() -> transact.NothingToWrite[leases.HeartbeatRecord] | transact.Write[leases.HeartbeatRecord]:
        read = await engine.read(leases.get_heartbeat(worker))
        life = leases.decode_heartbeat(worker, read.value(0))
        if life is None or not life.alive(read.time_us):
            raise errors.NotFound(f"no worker {worker.hex()} is alive")
        if life.sign.draining == draining:
            return transact.NothingToWrite(life)
        batch = kv.Batch()
        changed = leases.drain(batch, life, draining=draining)
        return transact.Write(batch, lambda _: changed)

    return await transact.run(engine, env, attempt)


async def acquire(
    engine: kv.Engine,
    env: envs.Env,
    at: ids.Address,
    me: leases.HeartbeatRecord,
    others: death_witness.DeathWitness,
    *,
    anyway: bool = False,
    why_not: Callable[[worlds.WorldRecord, leases.LeaseState], Awaitable[str | None]] | None = None,
    budget: quarantine.DeathBudget = DEFAULT_BUDGET,
    beside: Callable[[], bool] = lambda: False,
    telemetry: telemetry.Telemetry = telemetry.NOTHING,
) -> leases.Lease:
    """Take the lease under the next epoch. `Exists` if a living worker has it, or it is wanted by one that stands, or
    `why_not` says why this worker leaves it alone. `Quarantined` if so many processes have died while they restored the
    world that this one does not try. `beside`: see `model.leases.CrashTrial`.

    `anyway`: wherever it is wanted, because it is to be repaired, not to be run.
    """
    known: trial.TrialAndHead | None = None
    found: lease_model.CrashTrial | None = None

    async def attempt() -> transact.Write[leases.Lease | quarantine.Quarantined]:
        nonlocal known, found
        # Our own heartbeat is read too: the batch expects it, and a heartbeat since the last attempt has changed it.
        read = await engine.read(*leases.reads(at), leases.get_heartbeat(me.worker), worlds.get(at), *trial.reads(at))
        state = leases.decode(at, read.value(0), read.value(1), read.value(2))
        mine = leases.decode_heartbeat(me.worker, read.value(3))
        world = worlds.decode(at, read.value(4))
        known = trial.decode(at, read.value(5), read.value(6))
        fresh = mine if mine is not None and mine.sign.incarnation == me.sign.incarnation else me
        holder_heartbeat, proven_dead = mine, False
        if state.holder is not None and state.holder.worker != me.worker:
            read, holder_heartbeat, proven_dead = await _look(engine, ids.WorkerId(state.holder.worker), others)
        said = None if why_not is None else await why_not(world, state)
        if said is not None:
            raise errors.Exists(f"world {at.world.hex()} is {said}")
        void = anyway
        if not anyway and state.assignment is not None and state.assignment.worker != me.worker:
            wanted = ids.WorkerId(state.assignment.worker)
            void = not await wanted_there(engine, {at: wanted}, others)
        batch = kv.Batch()
        if not anyway:  # a world that is paused meanwhile must not be run; to be repaired, it may be paused
            worlds.expect_running(batch, world)
        lease = leases.acquire(
            batch, state, me=fresh, holder_heartbeat=holder_heartbeat, now_us=read.time_us,
            proven_dead=proven_dead, assignment_void=void,
        )  # fmt: skip
        if anyway:
            return transact.Write(batch, lambda _: lease)
        lives = await lives_of(engine, known.trial, others)
        found = trial.after(known, state, fresh, living=alive_among(lives, read.time_us), beside=beside())
        if found is None:
            return transact.Write(batch, lambda _: lease)
        if budget.is_hopeless(found):
            return _quarantine(env, world, state, known, found, budget=budget, now_us=read.time_us)
        _expect_silent(batch, known, state, lives, me)  # else one that gives a sign before the commit is blamed
        trial.begin(batch, known, found)
        tried = msgspec.structs.replace(lease, trial=found)
        return transact.Write(batch, lambda _: tried)

    acquired = await transact.run(engine, env, attempt)
    assert known is not None
    if found is not None:
        _tell_deaths(telemetry, at, known.trial, found)
    if isinstance(acquired, quarantine.Quarantined):
        _tell_quarantine(telemetry, at, acquired)
        raise acquired
    return acquired


async def _look(
    engine: kv.Engine, holder: ids.WorkerId, others: death_witness.DeathWitness
) -> tuple[kv.ReadResult, leases.HeartbeatRecord | None, bool]:
    """Read another holder's heartbeat, and whether it is proven to be dead. The time of this read is the later one."""
    read = await engine.read(leases.get_heartbeat(holder))
    return read, others.look(leases.decode_heartbeat(holder, read.value(0))), others.is_dead(holder)


def _tell_quarantine(told: telemetry.Telemetry, at: ids.Address, why: quarantine.Quarantined) -> None:
    told.tell(telemetry.WorldQuarantined(at, str(why)))


def _tell_deaths(
    told: telemetry.Telemetry, at: ids.Address, last: lease_model.CrashTrial | None, after: lease_model.CrashTrial
) -> None:
    if last is not None and after.step_deaths > last.step_deaths:
        told.tell(telemetry.StepDied(at, "died", after.step_deaths))
    if last is not None and after.restore_deaths > last.restore_deaths:
        told.tell(telemetry.RestoreDied(at, after.restore_deaths))


async def lives_of(
    engine: kv.Engine, crash_trial: lease_model.CrashTrial | None, others: death_witness.DeathWitness
) -> dict[ids.WorkerId, leases.HeartbeatRecord]:
    """The heartbeats of the holders that are blamed in a trial, or would be, as far as there are any. Of a worker whose
    death is proven there is none.
    """
    workers = trial.workers_of(crash_trial)
    if not workers:
        return {}
    read = await engine.read(*(leases.get_heartbeat(worker) for worker in workers))
    lives = [others.look(leases.decode_heartbeat(worker, read.value(index))) for index, worker in enumerate(workers)]
    return {life.worker: life for life in lives if life is not None and not others.is_dead(life.worker)}


def _expect_silent(
    batch: kv.Batch,
    known: trial.TrialAndHead,
    state: leases.LeaseState,
    lives: dict[ids.WorkerId, leases.HeartbeatRecord],
    me: leases.HeartbeatRecord,
) -> None:
    """Expect that the holder whose mark stands has given no sign since it was looked at. Taking the lease expects that
    already of the holder that it is taken from, and of ourselves.
    """
    silent = None if known.trial is None else lives.get(ids.WorkerId(known.trial.worker))
    if silent is not None and silent.worker not in (me.worker, state.holder and state.holder.worker):
        trial.expect_silent(batch, silent)


def alive_among(lives: dict[ids.WorkerId, leases.HeartbeatRecord], now_us: int) -> list[bytes]:
    """The incarnations that live, of these heartbeats."""
    return [life.sign.incarnation for life in lives.values() if life.alive(now_us)]


def _quarantine(
    env: envs.Env,
    world: worlds.WorldRecord,
    state: leases.LeaseState,
    known: trial.TrialAndHead,
    crash_trial: lease_model.CrashTrial,
    *,
    budget: quarantine.DeathBudget,
    now_us: int,
) -> transact.Write[leases.Lease | quarantine.Quarantined]:
    """Pause the world instead of taking it. Its trial stays, and says why."""
    batch = kv.Batch()
    leases.revoke(batch, state, token=envs.new_id(env))
    trial.expect(batch, known)
    why = quarantine.begin(batch, world, crash_trial, budget, now_us=now_us)
    return transact.Write(batch, lambda _: why)


async def may_take(
    engine: kv.Engine,
    candidates: Sequence[tuple[worlds.WorldRecord, leases.LeaseState]],
    me: leases.HeartbeatRecord | None,
    others: death_witness.DeathWitness,
) -> list[ids.Address]:
    """Those of these worlds that it makes sense to try for, in the order of their assignments' priorities. Most that
    have a hint are held by other workers, and one look at all of them costs less than a try at each.
    """
    states = [state for _, state in candidates]
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
    free: list[leases.LeaseState] = []
    for world, each in candidates:
        holder = None if each.holder is None else ids.WorkerId(each.holder.worker)
        wanted = None if each.assignment is None else ids.WorkerId(each.assignment.worker)
        life = None if wanted is None else lives[wanted]
        why_not = leases.may_acquire(
            each,
            me=me,
            holder_heartbeat=None if holder is None else lives[holder],
            now_us=read.time_us,
            proven_dead=holder in dead,
            assignment_void=wanted in dead or life is None or not _wants(world, life, read.time_us),
        )
        if why_not is None:
            free.append(each)
    # Stable: those of one priority stay in the order of their hints.
    return [each.at for each in sorted(free, key=_priority)]


def _priority(state: leases.LeaseState) -> int:
    return ready.NORMAL if state.assignment is None else state.assignment.priority


def _wants(world: worlds.WorldRecord, life: leases.HeartbeatRecord, now_us: int) -> bool:
    """Whether an assignment of the world to this worker counts: it takes worlds, and can run this one. Otherwise the
    world would wait for a worker that leaves it alone.
    """
    return life.stands(now_us) and worker_labels.unfit(world.at, world.meta, life.sign.labels) is None


async def wanted_there(
    engine: kv.Engine, assigned: Mapping[ids.Address, ids.WorkerId], others: death_witness.DeathWitness
) -> list[ids.Address]:
    """Those of these worlds whose assignment counts: the worker stands, and can run the world."""
    if not assigned:
        return []
    workers = list(dict.fromkeys(assigned.values()))
    read = await engine.read(
        *(leases.get_heartbeat(worker) for worker in workers), *(worlds.get(at) for at in assigned)
    )
    lives = {
        worker: others.look(leases.decode_heartbeat(worker, read.value(index))) for index, worker in enumerate(workers)
    }
    wanted: list[ids.Address] = []
    for index, (at, worker) in enumerate(assigned.items(), start=len(workers)):
        life = lives[worker]
        try:
            world = worlds.find(at, read.value(index))
        except errors.Corrupt:
            continue  # advice about a world that cannot be read advises nothing
        if world is not None and life is not None and _wants(world, life, read.time_us) and not others.is_dead(worker):
            wanted.append(at)
    return wanted


async def release(
    engine: kv.Engine,
    env: envs.Env,
    lease: leases.Lease,
    *,
    hint: bool = False,
    kept: lease_model.CrashTrial | None = None,
    mended: bool = False,
) -> bool:
    """Release a lease, and leave a hint if something is unread, or if a `hint` is wanted whatever there is.

    A lease that has moved on is left as it is: then this returns False. `kept`: the trial continues with the next
    holder, because this one could not run the world. `mended`: it was not taken to be run, and its trial is left as it
    is.
    """
    # An input that comes after this read leaves a hint of its own.
    read = await engine.read(inboxes.read_range(lease.at, count_max=1))
    unread = bool(read.page(0).items)
    batch = kv.Batch()
    leases.release(batch, lease)
    if kept is not None:
        trial.pause(batch, lease.at, kept)
    elif not mended:
        trial.clear(batch, lease.at)
    if unread or hint:  # in the same batch, so that a worker which sees the hint can take the world
        ready.leave(batch, lease.at, priority=ready.NORMAL if unread else ready.LATER)
    [released] = await transact.commit(engine, env, batch)
    # Behind a lost reply, the conflict may be with what this very batch has written.
    return isinstance(released, kv.Ok) or released.repeated


@asynccontextmanager
async def held_for_repair(
    engine: kv.Engine, env: envs.Env, at: ids.Address, others: death_witness.DeathWitness
) -> AsyncIterator[leases.Lease]:
    """Hold a world's lease for as long as the block lasts, not to run it. `Exists` if a living worker has the world."""
    # A worker of its own: another process that sees this lease can judge whether its holder is alive.
    worker, incarnation = ids.WorkerId(envs.new_id(env)), ids.Incarnation(envs.new_id(env))
    life = await beat(engine, env, worker, incarnation, WorkerSettings())
    try:
        lease = await acquire(engine, env, at, life, others, anyway=True)
        try:
            yield lease
        finally:  # the release leaves a hint if something is unread
            await release(engine, env, lease, mended=True)
    finally:
        # Also after a failure: a worker without this goodbye would look alive until its heartbeat runs out.
        await say_goodbye(engine, env, life)


async def take_back_claims(
    engine: kv.Engine, env: envs.Env, at: ids.Address, is_dead: Callable[[ids.WorkerId], bool]
) -> int:
    """Work of this world that a dead process has claimed is due again at once, not when its claim runs out."""
    known: dict[bytes, bool] = {}
    count = 0
    pages = paging.RangePages(engine, works.open_range(at, count_max=CLAIMS_PAGE))
    async for page in pages:
        batches = []
        for opened in works.decode_open(at, page):
            claimant = opened.work.worker
            if opened.work.state is not WorkState.CLAIMED:
                continue
            if claimant not in known:
                known[claimant] = is_dead(ids.WorkerId(claimant))
            if known[claimant]:
                batch = kv.Batch()
                works.take_back(batch, opened, now_us=pages.time_us, died=True)
                batches.append(batch)
        if batches:
            await transact.commit(engine, env, *batches)  # a conflict means that another process has it already
        count += len(batches)
    return count
