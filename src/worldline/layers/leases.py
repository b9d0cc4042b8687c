"""Leases: who may write a world.

Safety is the epoch alone: every write of the holder expects the epoch's exact bytes (`fence`), and every acquire
writes a higher one, also for the same worker. The epoch is never deleted, so no number ever comes twice. Expiry
only decides who may *try*: a lease names one incarnation of a worker, and lives as long as that incarnation's
heartbeat, so that one write renews all its worlds.

::

    free --acquire--> held --release--> free
                       |  heartbeat late
                       +------------------> held, but any worker may acquire (epoch + 1); the old holder is fenced
    held --revoke--> free, under epoch + 1; the old holder is fenced
    held --fence_off--> held, under epoch + 1, by the same; it is fenced, and acquires the world again

Assignments are advice: they say who should try. A worker that is not wanted is refused before it tries, as long as the
one that is wanted is alive and not draining (`stands`), and can run the world; else any worker may.

A lease is given only to an incarnation that is alive at the commit: `acquire` expects the acquirer's own heartbeat, so
a process that was paused, and whose id has been taken over by a restart, gets no lease from a decision made before.
"""

from __future__ import annotations

import msgspec

from worldline.base import errors
from worldline.keys import leases as keys
from worldline.model import ids, leases
from worldline.store import kv


class LeaseState(msgspec.Struct, frozen=True):
    """What is known of a world's lease, as it was read."""

    at: ids.Address
    epoch: leases.Epoch
    raw_epoch: bytes
    holder: leases.Holder | None
    raw_holder: bytes | None
    assignment: leases.Assignment | None
    raw_assignment: bytes | None


class HeartbeatRecord(msgspec.Struct, frozen=True):
    """A worker's heartbeat record as it was read. `stale`: its reader has seen it unchanged for longer than its TTL."""

    worker: ids.WorkerId
    sign: leases.Worker
    raw: bytes
    stale: bool = False

    def alive(self, now_us: int) -> bool:
        return not self.stale and now_us < self.sign.heartbeat_us + self.sign.ttl_us

    def stands(self, now_us: int) -> bool:
        """Whether worlds may be given to it: it is alive, and not being emptied."""
        return self.alive(now_us) and not self.sign.draining


class Lease(msgspec.Struct, frozen=True):
    """A lease held: what its holder needs to write, and to release it."""

    at: ids.Address
    worker: ids.WorkerId
    epoch: int
    raw_epoch: bytes
    raw_holder: bytes
    trial: leases.CrashTrial | None = None  # the world is on trial: its holder before did not release it
    incarnation: bytes = b""


def reads(at: ids.Address) -> tuple[kv.Get, kv.Get, kv.Get]:
    """What `decode` wants, in order."""
    return kv.Get(keys.epoch_key(at)), kv.Get(keys.holder_key(at)), kv.Get(keys.assignment_key(at))


def decode(at: ids.Address, epoch: bytes | None, holder: bytes | None, assignment: bytes | None) -> LeaseState:
    if epoch is None:
        raise errors.NotFound(f"no world {at.world.hex()} in this universe")
    state = LeaseState(
        at,
        keys.EPOCH.unpack(epoch),
        epoch,
        keys.HOLDER.get(holder),
        holder,
        keys.ASSIGNMENT.get(assignment),
        assignment,
    )
    # Every batch that writes one of the two keeps them equal, so a difference in one snapshot is damage and no race.
    if state.holder is not None and state.holder.epoch != state.epoch.number:
        raise errors.DecodeError(f"the holder has epoch {state.holder.epoch}, the world {state.epoch.number}")
    return state


def get_holder(at: ids.Address) -> kv.Get:
    """Who has a world, by itself: `decode_holder` reads it."""
    return kv.Get(keys.holder_key(at))


def decode_holder(raw: bytes | None) -> leases.Holder | None:
    return keys.HOLDER.get(raw)


def get_heartbeat(worker: ids.WorkerId) -> kv.Get:
    return kv.Get(keys.worker_key(worker))


def decode_heartbeat(worker: ids.WorkerId, raw: bytes | None) -> HeartbeatRecord | None:
    return None if raw is None else HeartbeatRecord(worker, keys.WORKER.unpack(raw), raw)


def may_acquire(
    state: LeaseState,
    *,
    me: HeartbeatRecord,
    holder_heartbeat: HeartbeatRecord | None,
    now_us: int,
    proven_dead: bool = False,
    assignment_void: bool = False,
) -> str | None:
    """Why this worker may not try now, or None if it may. `holder_heartbeat`: what was read under the
    holder's worker id.
    `assignment_void`: the worker that the world is assigned to does not stand, or cannot run it.

    Incarnations are compared, not worker ids: a restarted worker takes back its worlds at once, because the heartbeat
    is no longer the old process's; the old process may not take them from the new one under their common id.
    """
    if not me.alive(now_us):
        return f"not for worker {me.worker.hex()}, whose own heartbeat has expired"
    holder = state.holder
    if holder is not None and holder.incarnation == me.sign.incarnation:
        return None  # it has lost its memory of the world, not the lease; no other worker may try
    if state.assignment is not None and state.assignment.worker != me.worker and not assignment_void:
        return f"assigned to worker {state.assignment.worker.hex()}"
    # Behind the look at its own leases: a draining worker keeps what it has until it has released it.
    if me.sign.draining:
        return f"not for worker {me.worker.hex()}, which is draining"
    if holder is None or proven_dead:
        return None
    assert holder_heartbeat is None or holder_heartbeat.worker == holder.worker, (
        "the heartbeat of another worker proves nothing"
    )
    if (
        holder_heartbeat is None
        # The heartbeat of a restarted process says nothing for the holder: that incarnation is gone.
        or holder_heartbeat.sign.incarnation != holder.incarnation
        or not holder_heartbeat.alive(now_us)
    ):
        return None
    return f"held by worker {holder.worker.hex()} at epoch {holder.epoch}"


def acquire(
    batch: kv.Batch,
    state: LeaseState,
    *,
    me: HeartbeatRecord,
    holder_heartbeat: HeartbeatRecord | None,
    now_us: int,
    proven_dead: bool = False,
    assignment_void: bool = False,
) -> Lease:
    """Take the lease under the next epoch. Guards: the epoch and the holder as they were read.

    `proven_dead`: the holder's process is known to be gone (a released OS lock), so its heartbeat need not run out.
    Otherwise the holder's heartbeat is expected unchanged: a heartbeat in between keeps the lease where it is. Our own
    is expected too, so a heartbeat of ours in between only means that we try again. An incarnation asks for a world
    once at a time: two equal decisions of its own make equal bytes, and each may take the other's success for its own.
    """
    why_not = may_acquire(
        state,
        me=me,
        holder_heartbeat=holder_heartbeat,
        now_us=now_us,
        proven_dead=proven_dead,
        assignment_void=assignment_void,
    )
    if why_not is not None:
        raise errors.Exists(f"world {state.at.world.hex()} is {why_not}")
    number = state.epoch.number + 1
    raw_epoch = keys.EPOCH.pack(leases.Epoch(number, me.sign.incarnation))
    raw_holder = keys.HOLDER.pack(leases.Holder(me.worker, me.sign.incarnation, number, now_us))
    batch.expect(keys.epoch_key(state.at), state.raw_epoch)
    batch.put(keys.epoch_key(state.at), raw_epoch)
    if state.raw_holder is None:
        batch.absent(keys.holder_key(state.at))
    else:
        batch.expect(keys.holder_key(state.at), state.raw_holder)
    batch.put(keys.holder_key(state.at), raw_holder)
    batch.expect(keys.worker_key(me.worker), me.raw)
    batch.put(keys.held_key(me.worker, state.at), keys.HELD.pack(keys.HeldRecord(number)))
    if state.holder is not None and state.holder.worker != me.worker:
        batch.delete(keys.held_key(ids.WorkerId(state.holder.worker), state.at))
        # A heartbeat that arrives before this commit shows that the holder lives: then the acquire conflicts.
        if holder_heartbeat is not None and not proven_dead:
            batch.expect(keys.worker_key(holder_heartbeat.worker), holder_heartbeat.raw)
    return Lease(state.at, me.worker, number, raw_epoch, raw_holder, incarnation=me.sign.incarnation)


def lease_of(state: LeaseState, worker: ids.WorkerId, incarnation: ids.Incarnation) -> Lease | None:
    """The lease that this incarnation holds, if it does."""
    holder = state.holder
    if holder is None or state.raw_holder is None or (holder.worker, holder.incarnation) != (worker, incarnation):
        return None
    return Lease(state.at, worker, state.epoch.number, state.raw_epoch, state.raw_holder, incarnation=incarnation)


def fence(batch: kv.Batch, held: Lease) -> None:
    """What every write of the holder carries: the epoch must still be its own."""
    batch.expect(keys.epoch_key(held.at), held.raw_epoch)


def fenced(conflict: kv.Conflict, held: Lease) -> bool:
    """Whether a conflict says that the lease has moved on."""
    return conflict.at(keys.epoch_key(held.at))[0]


def release(batch: kv.Batch, held: Lease) -> None:
    """Release the lease. The epoch stays. Guard: the holder's record is this lease's own."""
    fence(batch, held)
    batch.expect(keys.holder_key(held.at), held.raw_holder)
    batch.delete(keys.holder_key(held.at))
    batch.delete(keys.held_key(held.worker, held.at))


def revoke(batch: kv.Batch, state: LeaseState, *, token: bytes) -> None:
    """Take the lease from its holder, so that a world which must stop does so at once. Guard: the epoch as read.

    `token`: an id made for this, in the place of an incarnation, so that no other process writes the same epoch.
    """
    # Written also if there is no holder: an acquire that was decided before expects the old epoch, and conflicts.
    number = state.epoch.number + 1
    batch.expect(keys.epoch_key(state.at), state.raw_epoch)
    batch.put(keys.epoch_key(state.at), keys.EPOCH.pack(leases.Epoch(number, ids.check_id(token, "a token"))))
    if state.holder is not None and state.raw_holder is not None:
        batch.expect(keys.holder_key(state.at), state.raw_holder)
        batch.delete(keys.holder_key(state.at))
        batch.delete(keys.held_key(ids.WorkerId(state.holder.worker), state.at))


def fence_off(batch: kv.Batch, state: LeaseState, *, token: bytes) -> None:
    """Have the holder bring its world back before it writes again: it is fenced, and is the holder all the same. For
    what a holder knows of a world, and what has changed. Guard: the epoch as read. `token`: as in `revoke`.
    """
    assert state.holder is not None
    assert state.raw_holder is not None
    number = state.epoch.number + 1
    batch.expect(keys.epoch_key(state.at), state.raw_epoch)
    batch.put(keys.epoch_key(state.at), keys.EPOCH.pack(leases.Epoch(number, ids.check_id(token, "a token"))))
    batch.expect(keys.holder_key(state.at), state.raw_holder)
    batch.put(keys.holder_key(state.at), keys.HOLDER.pack(msgspec.structs.replace(state.holder, epoch=number)))
    batch.put(keys.held_key(ids.WorkerId(state.holder.worker), state.at), keys.HELD.pack(keys.HeldRecord(number)))


def heartbeat(
    batch: kv.Batch,
    worker: ids.WorkerId,
    *,
    last: HeartbeatRecord | None,
    incarnation: ids.Incarnation,
    now_us: int,
    ttl_us: int,
    capacity: int,
    labels: dict[str, str],
    draining: bool = False,
    proven_dead: bool = False,
) -> HeartbeatRecord:
    """The first heartbeat of an incarnation, or the next. Guard: the heartbeat as this worker last wrote it.

    Another incarnation's heartbeat may be replaced only once it has expired, or its process is known to be gone
    (`proven_dead`), so two processes under one id cannot both live.
    """
    assert ttl_us > 0
    ids.check_id(incarnation, "an incarnation")
    key = keys.worker_key(worker)
    beat = 1
    if last is None:
        batch.absent(key)
    else:
        if last.sign.incarnation == incarnation:
            # Counted, because the time may be the same: bytes that do not change are no guard.
            beat = last.sign.beat + 1
        elif last.alive(now_us) and not proven_dead:
            raise errors.Exists(f"worker {worker.hex()} is alive in another process")
        batch.expect(key, last.raw)
    sign = leases.Worker(incarnation, beat, now_us, ttl_us, capacity, dict(labels), draining)
    raw = keys.WORKER.pack(sign)
    batch.put(key, raw)
    return HeartbeatRecord(worker, sign, raw)


def drain(batch: kv.Batch, life: HeartbeatRecord, *, draining: bool) -> HeartbeatRecord:
    """Mark a worker as draining, or as used again. Guard: the heartbeat as it was read; its time stays."""
    # The count changes the bytes also where `draining` is what it was: else the batch had no guard.
    sign = msgspec.structs.replace(life.sign, beat=life.sign.beat + 1, draining=draining)
    raw = keys.WORKER.pack(sign)
    batch.expect(keys.worker_key(life.worker), life.raw)
    batch.put(keys.worker_key(life.worker), raw)
    return HeartbeatRecord(life.worker, sign, raw)


def goodbye(batch: kv.Batch, life: HeartbeatRecord) -> None:
    """Delete the heartbeat record. Guard: it is this worker's own."""
    batch.expect(keys.worker_key(life.worker), life.raw)
    batch.delete(keys.worker_key(life.worker))


def held_range(worker: ids.WorkerId, *, count_max: int) -> kv.Range:
    """The worlds a worker holds, by address."""
    return kv.Range(*keys.held(worker), count_max=count_max)


def held_in_range(worker: ids.WorkerId, universe: ids.UniverseId, *, count_max: int) -> kv.Range:
    """The same, of one universe."""
    return kv.Range(*keys.held_in(worker, universe), count_max=count_max)


def decode_held(worker: ids.WorkerId, page: kv.Page) -> list[tuple[ids.Address, int]]:
    return [(keys.held_address(worker, key), keys.HELD.unpack(raw).epoch) for key, raw in page.items]


def workers_range(*, after: ids.WorkerId | None = None) -> kv.Range:
    """The first key of the next worker behind this one: its heartbeat if it has one. What it holds is not walked."""
    begin, end = keys.workers()
    if after is not None:
        # Behind all that this worker holds: walking over workers must not cost as much as their worlds.
        begin = keys.held(after)[1]
    return kv.Range(begin, end, count_max=1)


def decode_worker(page: kv.Page) -> tuple[ids.WorkerId, HeartbeatRecord | None] | None:
    """The worker of such a page, with its heartbeat if it has one; None if there is no worker left."""
    for key, raw in page.items:
        worker = keys.owner_of(key)
        return worker, None if keys.worker_of(key) is None else decode_heartbeat(worker, raw)
    return None


def release_for(batch: kv.Batch, state: LeaseState, dead: HeartbeatRecord, *, epoch: int) -> None:
    """Release a lease on behalf of a worker that cannot do so any more. `epoch`: what its held record says.

    Guard: the holder's record; the heartbeat is expected too, so that a worker that turns out to live keeps its worlds.
    The epoch stays: no lease was acquired. A held record that a later holder left behind just goes. Worker ids
    are compared: an earlier life of this worker, which a restart replaced and never took over from, is dead as well.
    """
    key = keys.held_key(dead.worker, state.at)
    batch.expect(keys.worker_key(dead.worker), dead.raw)
    batch.expect(keys.epoch_key(state.at), state.raw_epoch)  # no hint is left with this for a world deleted meanwhile
    batch.delete(key)
    holder = state.holder
    if holder is not None and holder.worker == dead.worker and state.raw_holder is not None:
        batch.expect(keys.holder_key(state.at), state.raw_holder)
        batch.delete(keys.holder_key(state.at))
    else:
        # The guard of this branch: heartbeat and epoch are as they were when the batch has succeeded.
        batch.expect(key, keys.HELD.pack(keys.HeldRecord(epoch)))


def forget_held(batch: kv.Batch, state: LeaseState, worker: ids.WorkerId, *, epoch: int) -> bool:
    """Drop a record that a worker held a world which has moved on since. Guard: the record, of that epoch.

    Returns False for one that is true: what a worker holds is given back by the worker, or for one that is dead.
    """
    if state.holder is not None and state.holder.worker == worker:
        return False
    key = keys.held_key(worker, state.at)
    batch.expect(key, keys.HELD.pack(keys.HeldRecord(epoch)))
    batch.delete(key)
    return True


def assign(batch: kv.Batch, state: LeaseState, worker: ids.WorkerId, *, priority: int, reason: str) -> None:
    """Say where the world is wanted. `priority`: of the worlds that a worker may take, those with the lowest first.
    Guard: the assignment as it was read. The epoch is expected, too: a world that was
    deleted meanwhile has another one.
    """
    batch.expect(keys.epoch_key(state.at), state.raw_epoch)
    key = keys.assignment_key(state.at)
    if state.raw_assignment is None:
        batch.absent(key)
    else:
        batch.expect(key, state.raw_assignment)
    # Counted, so that the same assignment made twice has other bytes each time.
    revision = 1 if state.assignment is None else state.assignment.revision + 1
    batch.put(key, keys.ASSIGNMENT.pack(leases.Assignment(worker, priority, reason, revision)))


def get_assignment(at: ids.Address) -> kv.Get:
    """Where a world is wanted, by itself: `assignee` reads it."""
    return kv.Get(keys.assignment_key(at))


def assignee(raw: bytes | None) -> ids.WorkerId | None:
    assignment = keys.ASSIGNMENT.get(raw)
    return None if assignment is None else ids.WorkerId(assignment.worker)


def unassign(batch: kv.Batch, state: LeaseState) -> None:
    """Let any worker try again. Guard: the assignment as it was read; the epoch is expected, as in `assign`."""
    batch.expect(keys.epoch_key(state.at), state.raw_epoch)
    if state.raw_assignment is None:
        raise errors.NotFound("the world is not assigned to any worker")
    key = keys.assignment_key(state.at)
    batch.expect(key, state.raw_assignment)
    batch.delete(key)
