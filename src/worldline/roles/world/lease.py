"""Getting, keeping and giving up a world: lease, life sign, snapshot, change of program.

Functions over the store that a world worker calls outside its cycle. Each is a protocol of its own: read, build a
batch, commit; a lost race is an expected loss that the caller handles.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from worldline.base import env as envs
from worldline.base import errors
from worldline.codec import structs
from worldline.kernel import commands
from worldline.keys import snapshots as snapshot_keys
from worldline.layers import inbox as inboxes
from worldline.layers import leases, ready, snapshots, worlds
from worldline.layers import work as works
from worldline.model import ids, inbox, payload, step
from worldline.model import snapshot as snapshot_model
from worldline.model.settings import WorkerSettings
from worldline.model.work import WorkKind, WorkState
from worldline.roles.cluster import expiry
from worldline.roles.world import kernel_thread, restore
from worldline.roles.world.held_world import Handover, Hosted
from worldline.store import kv, transact

if TYPE_CHECKING:
    from worldline.roles.world.cycle import Cycle

log = logging.getLogger("worldline.worker")

CLAIMS_PAGE = 256


async def beat(
    engine: kv.Engine, env: envs.Env, worker: ids.WorkerId, incarnation: ids.Incarnation, settings: WorkerSettings,
    *, labels: dict[str, str] | None = None, told: Callable[[int], None] = lambda _: None,
) -> leases.Life:  # fmt: skip
    """Write the worker's life sign, the first or the next. Whether it is being emptied is for others to say.

    `told`: gets the store's time as soon as it is read.
    """

    async def attempt() -> transact.Write[leases.Life]:
        read = await engine.read(leases.get_life(worker))
        told(read.time_us)
        known = leases.decode_life(worker, read.value(0))
        draining = known is not None and known.sign.incarnation == incarnation and known.sign.draining
        batch = kv.Batch()
        life = leases.heartbeat(
            batch, worker, before=known, incarnation=incarnation, now_us=read.time_us,
            ttl_us=settings.lease_ttl_ms * 1000, capacity=settings.max_worlds_warm,
            labels=settings.labels if labels is None else labels, draining=draining,
        )  # fmt: skip
        return transact.Write(batch, lambda _: life)

    return await transact.run(engine, env, attempt)


async def say_goodbye(engine: kv.Engine, env: envs.Env, me: leases.Life) -> None:
    """Take the life sign away, whatever others have written into it since."""

    async def attempt() -> transact.Done[None] | transact.Write[None]:
        known = leases.decode_life(me.worker, (await engine.read(leases.get_life(me.worker))).value(0))
        if known is None or known.sign.incarnation != me.sign.incarnation:
            return transact.Done(None)
        batch = kv.Batch()
        leases.goodbye(batch, known)
        return transact.Write(batch, lambda _: None)

    await transact.run(engine, env, attempt)


async def drain(engine: kv.Engine, env: envs.Env, worker: ids.WorkerId, *, draining: bool) -> leases.Life:
    """Have a worker emptied, or used again. `NotFound` if it is not alive."""

    async def attempt() -> transact.Done[leases.Life] | transact.Write[leases.Life]:
        read = await engine.read(leases.get_life(worker))
        life = leases.decode_life(worker, read.value(0))
        if life is None or not life.alive(read.time_us):
            raise errors.NotFound(f"no worker {worker.hex()} is alive")
        if life.sign.draining == draining:
            return transact.Done(life)
        batch = kv.Batch()
        changed = leases.drain(batch, life, draining=draining)
        return transact.Write(batch, lambda _: changed)

    return await transact.run(engine, env, attempt)


async def acquire(
    engine: kv.Engine, env: envs.Env, at: ids.Address, me: leases.Life, others: expiry.Witness,
    *, anyway: bool = False,
) -> leases.Lease:  # fmt: skip
    """Take the lease under the next epoch. `Exists` if a living worker has it, or it is wanted by one that stands.

    `anyway`: wherever it is wanted, because it is not to be run but to be mended.
    """

    async def attempt() -> transact.Write[leases.Lease]:
        # Our own life sign is read too: the batch expects it, and a heartbeat since the last attempt has changed it.
        read = await engine.read(*leases.reads(at), leases.get_life(me.worker), worlds.get(at))
        state = leases.decode(at, read.value(0), read.value(1), read.value(2))
        mine = leases.decode_life(me.worker, read.value(3))
        world = worlds.decode(at, read.value(4))
        fresh = mine if mine is not None and mine.sign.incarnation == me.sign.incarnation else me
        holder_life = mine
        proven_dead = False
        if state.holder is not None and state.holder.worker != me.worker:
            other = ids.WorkerId(state.holder.worker)
            read = await engine.read(leases.get_life(other))
            holder_life = others.look(leases.decode_life(other, read.value(0)))
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
            holder_life=holder_life,
            now_us=read.time_us,
            proven_dead=proven_dead,
            assignment_void=void,
        )
        return transact.Write(batch, lambda _: lease)

    return await transact.run(engine, env, attempt)


async def may_take(
    engine: kv.Engine, states: Sequence[leases.State], me: leases.Life | None, others: expiry.Witness
) -> list[ids.Address]:
    """Those of these worlds that it makes sense to try for. Most that have a hint are held by somebody else, and one
    look at all of them costs less than a try at each.
    """
    named = [each.holder.worker for each in states if each.holder is not None]
    named += [each.assignment.worker for each in states if each.assignment is not None]
    if me is None or not named:
        return [each.at for each in states]
    workers = [ids.WorkerId(worker) for worker in dict.fromkeys(named)]
    read = await engine.read(*(leases.get_life(worker) for worker in workers))
    lives = {worker: others.look(leases.decode_life(worker, read.value(index))) for index, worker in enumerate(workers)}
    dead = [worker for worker in workers if worker != me.worker and others.is_dead(worker)]
    free: list[ids.Address] = []
    for each in states:
        holder = None if each.holder is None else ids.WorkerId(each.holder.worker)
        wanted = None if each.assignment is None else ids.WorkerId(each.assignment.worker)
        life = None if wanted is None else lives[wanted]
        why_not = leases.may_acquire(
            each,
            me=me,
            holder_life=None if holder is None else lives[holder],
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
    read = await engine.read(*(leases.get_life(worker) for worker in workers))
    lives = [others.look(leases.decode_life(worker, read.value(index))) for index, worker in enumerate(workers)]
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
            await transact.commit(engine, env, *batches)  # a conflict means that somebody else has it already
        count += len(batches)
        if not read.page(0).more:
            return count
        after = found[-1].intent


def wants_saving(hosted: Hosted, settings: WorkerSettings, now_us: int) -> bool:
    """Snapshots by policy: after so many entries, after so much time, and when a world with live runs falls quiet."""
    if not hosted.entries_since or now_us < hosted.save_again_us:
        return False
    if hosted.entries_since >= settings.snapshot_entries:
        return True
    if now_us - hosted.saved_us >= settings.snapshot_ms * 1000:
        return True
    quiet = not hosted.busy and now_us - hosted.active_us >= settings.snapshot_idle_ms * 1000
    return quiet and any(hosted.machine.live.values())


def due_us(hosted: Hosted, settings: WorkerSettings) -> int:
    """When a world wants to be saved or let go, if nothing happens to it until then."""
    release_us = hosted.active_us + settings.idle_release_ms * 1000
    if not hosted.entries_since:
        return release_us
    save_us = hosted.saved_us + settings.snapshot_ms * 1000
    if hosted.entries_since >= settings.snapshot_entries:
        save_us = hosted.save_again_us
    elif hosted.busy or any(hosted.machine.live.values()):  # a busy one cannot be asked now
        save_us = min(save_us, hosted.active_us + settings.snapshot_idle_ms * 1000)
    return min(release_us, max(hosted.save_again_us, save_us))


async def save(engine: kv.Engine, env: envs.Env, hosted: Hosted, parts: list[bytes]) -> transact.Certain:
    """Put a snapshot's parts away, record it and make it the baseline."""
    root, size = await restore.save_parts(hosted.blobs, parts)
    taken = snapshots.at_head(hosted.head, root=root, size=size, program_hash=hosted.program.hash)
    batch = kv.Batch()
    leases.fence(batch, hosted.lease)
    raw = new_baseline(batch, hosted, taken)
    [outcome] = await transact.commit(engine, env, batch)
    if isinstance(outcome, kv.Ok):
        hosted.baseline, hosted.baseline_raw, hosted.entries_since = taken, raw, 0
    return outcome


def new_baseline(batch: kv.Batch, hosted: Hosted, taken: snapshot_model.Snapshot) -> bytes:
    """Record a snapshot and make it the baseline, in a batch that fences. Returns the baseline's bytes."""
    saved = snapshots.save(batch, hosted.at, taken)
    snapshots.promote(batch, hosted.at, before_raw=hosted.baseline_raw, to=saved)
    return snapshot_keys.BASELINE.pack(taken)


async def adopt(
    kernel: kernel_thread.KernelThread, cycle: Cycle, hosted: Hosted, world: worlds.World, before: bytes
) -> None:
    """Go on under other code than the baseline was written by.

    The entries above the baseline have been replayed and came out the same. Every live run is rebuilt under the new
    code; those that it does not fit are blocked, the others go on. The change is an input of its own, journaled in one
    commit with the baseline that follows it, so no restore ever has to run old entries under new code.
    """
    blocked = await kernel.run(hosted.at, commands.fits, hosted.machine)
    change = structs.encode(commands.ChangeProgram(before, hosted.program.hash, blocked))
    item = inbox.Control(commands.PROGRAM, payload.inline(change))
    await cycle.step_and_save(hosted, Handover(item, change), world)
    name = world.meta.name
    if blocked:
        for run_id, report in sorted(blocked.items()):
            log.warning("world %r: run %r is blocked, its code has changed under it:\n%s", name, run_id, report)
    log.warning(
        "world %r goes on under the changed program %r: %d runs taken over, %d blocked",
        name, hosted.program.name, len(hosted.machine.live_runs()) - len(blocked), len(blocked),
    )  # fmt: skip


def open_work(hosted: Hosted) -> list[step.Wanted]:
    """All effects and timers that the machine has open, as they were asked for. For repairs."""
    pending = [each for each in hosted.machine.open.values() if each.kind is not WorkKind.MESSAGE]
    return [hosted.machine.wanted_again(each, hosted.at) for each in pending]
