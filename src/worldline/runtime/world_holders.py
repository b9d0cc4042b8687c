"""Which worker runs a world or should, is it alive, and which workers refuse it: the one answer to "is it hosted?".

A holder is alive if its heartbeat has not run out, is one of the incarnation that took the lease, and its process is
not proven dead by its lock (`process_lock`, embedded stores only).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from worldline.layers import leases, worlds
from worldline.model import ids
from worldline.model.world_records import Status
from worldline.runtime import operator_calls, placement, process_lock, store_opening, worker_labels


class WorldHolder(msgspec.Struct, frozen=True):
    """The worker that has a world's lease. `heartbeat_us`: of the incarnation that took it, if there is one."""

    worker: ids.WorkerId
    epoch: int
    acquired_us: int
    heartbeat_us: int | None
    alive: bool
    name: str = ""  # as its heartbeat says


class Assigned(msgspec.Struct, frozen=True):
    """Where a world is wanted, and why. `void`: why that does not count, so that any worker may run it."""

    worker: ids.WorkerId
    name: str
    reason: str
    priority: int
    void: str = ""


class WorkerRefusal(msgspec.Struct, frozen=True):
    """What a living worker says of a world: that it does not run it, or that it could not prove it, and why."""

    worker: ids.WorkerId
    name: str
    why: str


async def find(store: store_opening.Store, at: ids.Address) -> WorldHolder | None:
    """The worker that has the world's lease, if one has."""
    read = await store.engine.read(*leases.reads(at))
    return (await of_states(store, [leases.decode(at, read.value(0), read.value(1), read.value(2))]))[0]


async def is_hosted(store: store_opening.Store, at: ids.Address) -> bool:
    """Whether a living worker runs the world."""
    holder = await find(store, at)
    return holder is not None and holder.alive


async def is_served(store: store_opening.Store, at: ids.Address) -> bool:
    """Whether a living worker runs the world, or would as soon as there is something to do: one that nothing happens to
    is released after a while, whatever waits for it.
    """
    if await is_hosted(store, at):
        return True
    read = await store.engine.read(worlds.get(at))
    world = worlds.find(at, read.value(0))
    if world is None or world.meta.status is not Status.ACTIVE:
        return False
    for life in await operator_calls.list_workers(store.engine):
        labels = life.sign.labels
        # A worker that is being emptied takes no worlds, and one that refuses this world does not run it.
        alive = life.alive(read.time_us) and not life.sign.draining and not is_gone(store, life.worker)
        if alive and placement.refused_label(at) not in labels and worker_labels.unfit(at, world.meta, labels) is None:
            return True
    return False


async def assigned(store: store_opening.Store, at: ids.Address) -> Assigned | None:
    """The worker that the world is assigned to, if it is to one."""
    read = await store.engine.read(*leases.reads(at), worlds.get(at))
    wanted = leases.decode(at, read.value(0), read.value(1), read.value(2)).assignment
    if wanted is None:
        return None
    meta = worlds.decode(at, read.value(3)).meta
    worker = ids.WorkerId(wanted.worker)
    read = await store.engine.read(leases.get_heartbeat(worker))
    life = leases.decode_heartbeat(worker, read.value(0))
    if life is None or not life.alive(read.time_us) or is_gone(store, worker):
        void = "is dead"
    elif life.sign.draining:
        void = "is draining"
    else:
        void = worker_labels.unfit(at, meta, life.sign.labels) or ""
    name = "" if life is None else life.sign.labels.get(placement.NAME, "")
    return Assigned(worker, name or worker.hex()[:8], wanted.reason, wanted.priority, void)


async def of_states(store: store_opening.Store, states: Sequence[leases.LeaseState]) -> list[WorldHolder | None]:
    """The holders that these leases name."""
    workers = [ids.WorkerId(worker) for worker in dict.fromkeys(each.holder.worker for each in states if each.holder)]
    if not workers:
        return [None] * len(states)
    read = await store.engine.read(*(leases.get_heartbeat(worker) for worker in workers))
    lives = {worker: leases.decode_heartbeat(worker, read.value(index)) for index, worker in enumerate(workers)}
    gone = {worker: is_gone(store, worker) for worker in workers}
    found: list[WorldHolder | None] = []
    for each in states:
        held = each.holder
        if held is None:
            found.append(None)
            continue
        worker = ids.WorkerId(held.worker)
        life = lives[worker]
        # The heartbeat of another process under the same id says nothing of the one that took the lease.
        if life is None or life.sign.incarnation != held.incarnation:
            name = "" if life is None else life.sign.labels.get(placement.NAME, "")
            found.append(WorldHolder(worker, held.epoch, held.acquired_us, None, False, name))
            continue
        alive = life.alive(read.time_us) and not gone[worker]
        name = life.sign.labels.get(placement.NAME, "")
        found.append(WorldHolder(worker, held.epoch, held.acquired_us, life.sign.heartbeat_us, alive, name))
    return found


def is_gone(store: store_opening.Store, worker: ids.WorkerId) -> bool:
    """Whether the worker's process is proven dead: only an embedded store can tell."""
    return store_opening.scheme(store.url) == "" and process_lock.Presence(Path(store.url)).is_dead(worker)


async def refusals_of(store: store_opening.Store, at: ids.Address) -> list[WorkerRefusal]:
    """What living workers say of a world that they cannot run."""
    return await _said(store, placement.refused_label(at))


async def divergences_of(store: store_opening.Store, at: ids.Address) -> list[WorkerRefusal]:
    """What living workers say of a world whose code did not do the same when they ran it again."""
    return await _said(store, placement.diverged_label(at))


async def _said(store: store_opening.Store, label: str) -> list[WorkerRefusal]:
    now_us = (await store.engine.read()).time_us
    found: list[WorkerRefusal] = []
    for life in await operator_calls.list_workers(store.engine):
        why = life.sign.labels.get(label)
        if why is not None and life.alive(now_us) and not is_gone(store, life.worker):
            name = life.sign.labels.get(placement.NAME) or life.worker.hex()[:8]
            found.append(WorkerRefusal(life.worker, name, why))
    return found
