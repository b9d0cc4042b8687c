"""The operations of the runtime plane as calls: leases, placement, workers, ingress, messages, effects, timers.

The roles do these things as parts of larger commits; here each is one call by itself, for operators, for workers and
adapters of other make, and for tests. Each reads, builds a batch with the layers and commits it.

Every call may be repeated. A caller that has lost the answer makes the same call again and is told what the first has
done: a lease that the same incarnation holds is given again, an id or a token that was used is recognised, and what is
done already is not done twice. Refusals are typed: `NotFound`, `Closed`, `Exists` (somebody else has it, or it is not
due), `Fenced` (the epoch has moved on), `IdReused`, `DedupeExpired`.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from worldline.base import env as envs
from worldline.base import errors
from worldline.layers import inbox as inboxes
from worldline.layers import leases, messages, ready, worlds
from worldline.layers import work as works
from worldline.model import ids, inbox
from worldline.model.settings import WorkerSettings
from worldline.model.work import WorkState
from worldline.roles.cluster import expiry
from worldline.roles.world import lease as world_lease
from worldline.store import kv, transact

PAGE = 500


class Enqueued(msgspec.Struct, frozen=True):
    """Where an input stands. `repeated`: it was taken before, under this very stamp."""

    stamp: kv.Stamp
    repeated: bool


# --- Workers -------------------------------------------------------------------------------------------------------


async def heartbeat_worker(
    engine: kv.Engine, env: envs.Env, worker: ids.WorkerId, incarnation: ids.Incarnation, settings: WorkerSettings
) -> leases.Life:
    """Register a worker, or renew its life sign and with it every lease it holds."""
    return await world_lease.beat(engine, env, worker, incarnation, settings)


async def retire_worker(engine: kv.Engine, env: envs.Env, life: leases.Life) -> None:
    """Take a worker's life sign away. What it still holds is free for anybody."""
    await world_lease.say_goodbye(engine, env, life)


async def drain_worker(engine: kv.Engine, env: envs.Env, worker: ids.WorkerId, *, draining: bool) -> leases.Life:
    """Have a worker emptied, or used again."""
    return await world_lease.drain(engine, env, worker, draining=draining)


async def list_workers(engine: kv.Engine) -> list[leases.Life]:
    """Every worker of the store that has a life sign, run out or not."""
    lives: list[leases.Life] = []
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


async def acquire_lease(
    engine: kv.Engine, env: envs.Env, at: ids.Address, me: leases.Life,
    is_dead: Callable[[ids.WorkerId], bool] = lambda _: False,
) -> leases.Lease:  # fmt: skip
    """Take the lease of a world under the next epoch. `Exists` if somebody else has it or it is assigned to another.

    If this incarnation has it already, the lease it has: the answer to the first call was lost.
    """
    held = leases.lease_of(await _lease(engine, at), me.worker, ids.Incarnation(me.sign.incarnation))
    return held or await world_lease.acquire(engine, env, at, me, expiry.Witness(env, is_dead))


async def renew_lease(
    engine: kv.Engine, env: envs.Env, lease: leases.Lease, incarnation: ids.Incarnation, settings: WorkerSettings
) -> leases.Life:
    """Keep a lease, with all others of its worker. `Fenced` if the world's epoch has moved on."""
    state = await _lease(engine, lease.at)
    if state.raw_epoch != lease.raw_epoch or state.raw_holder != lease.raw_holder:
        raise errors.Fenced(f"world {lease.at.world.hex()} is at epoch {state.epoch.number}, not {lease.epoch}")
    return await world_lease.beat(engine, env, lease.worker, incarnation, settings)


async def release_lease(engine: kv.Engine, env: envs.Env, lease: leases.Lease) -> bool:
    """Let go. Returns whether it was still held: what has moved on is left alone."""
    state = await _lease(engine, lease.at)
    if state.raw_holder != lease.raw_holder or state.raw_epoch != lease.raw_epoch:
        return False
    await world_lease.release(engine, env, lease)
    return True


async def revoke_lease(engine: kv.Engine, env: envs.Env, at: ids.Address, *, epoch: int | None = None) -> int:
    """Take the lease from whoever has it, and let it be known that the world is free. Returns the epoch it is at now.

    `epoch`: only if it is still held at that epoch. Without, a repeat revokes the lease of whoever came in between.
    """

    async def attempt() -> transact.Done[int] | transact.Write[int]:
        read = await engine.read(*leases.reads(at))
        state = leases.decode(at, read.value(0), read.value(1), read.value(2))
        if state.holder is None or (epoch is not None and state.epoch.number != epoch):
            return transact.Done(state.epoch.number)
        batch = kv.Batch()
        leases.revoke(batch, state, token=envs.new_id(env))
        ready.leave(batch, at, priority=ready.NORMAL)
        return transact.Write(batch, lambda _: state.epoch.number + 1)

    return await transact.run(engine, env, attempt)


async def assign_world(
    engine: kv.Engine, env: envs.Env, at: ids.Address, worker: ids.WorkerId, *, reason: str = "by hand"
) -> None:
    """Say which worker should run a world. If another has it, it lets go. `NotFound` if no such worker takes worlds."""

    async def attempt() -> transact.Done[None] | transact.Write[None]:
        read = await engine.read(*leases.reads(at), leases.get_life(worker))
        state = leases.decode(at, read.value(0), read.value(1), read.value(2))
        life = leases.decode_life(worker, read.value(3))
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
    """Anybody may run the world again."""

    async def attempt() -> transact.Done[None] | transact.Write[None]:
        state = await _lease(engine, at)
        if state.assignment is None:
            return transact.Done(None)
        batch = kv.Batch()
        leases.unassign(batch, state)
        return transact.Write(batch, lambda _: None)

    await transact.run(engine, env, attempt)


# --- Into worlds ---------------------------------------------------------------------------------------------------


async def enqueue_ingress(
    engine: kv.Engine, env: envs.Env, at: ids.Address, item: inbox.Item, *, client_id: bytes | str, window_us: int
) -> Enqueued:
    """Put an input into a world's inbox, once for each client id."""
    if isinstance(client_id, str):
        ids.check_client_id(client_id)

    async def attempt() -> transact.Done[Enqueued] | transact.Write[Enqueued]:
        read = await engine.read(worlds.get(at), inboxes.get_seen(at, client_id))
        world = worlds.decode(at, read.value(0))
        seen = read.value(1)
        if seen is not None:
            return transact.Done(Enqueued(inboxes.seen_stamp(seen, item, client_id=client_id), repeated=True))
        batch = kv.Batch()
        worlds.expect_open(batch, world)
        index = inboxes.enqueue(batch, at, item, client_id=client_id, time_us=read.time_us, window_us=window_us)
        ready.leave(batch, at, priority=ready.priority_of(item))
        return transact.Write(batch, lambda ok: Enqueued(ok.stamps[index], repeated=False))

    return await transact.run(engine, env, attempt)


async def send_message(
    engine: kv.Engine, env: envs.Env, to: ids.Address, message: inbox.Message, *, window_us: int
) -> Enqueued:
    """Deliver a message from a world of another store or universe, once for each sender and message id."""

    async def attempt() -> transact.Done[Enqueued] | transact.Write[Enqueued]:
        read = await engine.read(worlds.get(to), messages.get_seen(to, message))
        world = worlds.decode(to, read.value(0))
        seen = read.value(1)
        if seen is not None:
            return transact.Done(Enqueued(messages.seen_stamp(seen, message), repeated=True))
        batch = kv.Batch()
        index = messages.deliver(batch, world, message, time_us=read.time_us, window_us=window_us)
        ready.leave(batch, to, priority=ready.NORMAL)
        return transact.Write(batch, lambda ok: Enqueued(ok.stamps[index], repeated=False))

    return await transact.run(engine, env, attempt)


# --- Effects and timers --------------------------------------------------------------------------------------------


async def list_due(engine: kv.Engine, universe: ids.UniverseId, *, queue: str, count_max: int) -> list[works.Found]:
    """What is due in a queue, oldest first."""
    now_us = (await engine.read()).time_us
    request = works.due_range(universe, queue=queue, shard=0, now_us=now_us, count_max=count_max)
    return works.decode_due(universe, (await engine.read(request)).page(0))


async def claim_effect(
    engine: kv.Engine, env: envs.Env, at: ids.Address, intent: ids.IntentId, *, worker: ids.WorkerId,
    token: ids.Token, ttl_us: int,
) -> works.Open:  # fmt: skip
    """Take a due effect for a while, under a token made for this. `Exists` if it is not due, or another has it."""

    async def attempt() -> transact.Done[works.Open] | transact.Write[works.Open]:
        opened, now_us = await _open(engine, at, intent)
        if opened.work.token == token:
            return transact.Done(opened)
        batch = kv.Batch()
        claimed = works.claim(batch, opened, worker=worker, token=token, now_us=now_us, until_us=now_us + ttl_us)
        return transact.Write(batch, lambda _: claimed)

    return await transact.run(engine, env, attempt)


async def renew_effect(
    engine: kv.Engine, env: envs.Env, at: ids.Address, intent: ids.IntentId, *, token: ids.Token, ttl_us: int
) -> works.Open:
    """Keep a claim for longer. `Closed` if it is not ours any more."""

    async def attempt() -> transact.Write[works.Open]:
        opened, now_us = await _open(engine, at, intent)
        held = _check_claim(opened, token)
        batch = kv.Batch()
        renewed = works.renew(batch, held, until_us=now_us + ttl_us)
        return transact.Write(batch, lambda _: renewed)

    return await transact.run(engine, env, attempt)


async def ack_effect(
    engine: kv.Engine, env: envs.Env, at: ids.Address, token: ids.Token, receipt: inbox.Receipt
) -> bool:  # fmt: skip
    """Answer a claimed effect: the receipt is in the world's inbox and the work settled, or neither.

    Returns whether it was answered now; False if it was before, under this token, or if nobody wants the answer any
    more. `Closed` if somebody else has the work.
    """
    intent = ids.IntentId(receipt.intent)

    async def attempt() -> transact.Done[bool] | transact.Write[bool]:
        opened = works.decode(at, intent, (await engine.read(works.get(at, intent))).value(0))
        if opened is None or (opened.work.state is WorkState.SETTLED and opened.work.token == token):
            return transact.Done(False)
        held = _check_claim(opened, token)
        batch = kv.Batch()
        works.settle(batch, held)
        await _post(engine, batch, at, receipt)
        return transact.Write(batch, lambda _: True)

    return await transact.run(engine, env, attempt)


async def fail_effect(
    engine: kv.Engine, env: envs.Env, at: ids.Address, intent: ids.IntentId, *, token: ids.Token, due_us: int,
    error: str,
) -> bool:  # fmt: skip
    """Give a claim back, to be tried again later. Returns whether it was still ours: if not, nothing changes."""

    async def attempt() -> transact.Done[bool] | transact.Write[bool]:
        opened, _ = await _open(engine, at, intent)
        if opened.work.state is not WorkState.CLAIMED or opened.work.token != token:
            return transact.Done(False)
        batch = kv.Batch()
        works.back_off(batch, opened, due_us=due_us, error=error)
        return transact.Write(batch, lambda _: True)

    return await transact.run(engine, env, attempt)


async def fire_timer(
    engine: kv.Engine, env: envs.Env, at: ids.Address, intent: ids.IntentId, *, worker: ids.WorkerId
) -> bool:
    """Let a due timer fire. Returns whether it fired now; False if it has before, or nobody waits for it any more.
    `Exists` if it is not due yet.
    """
    token = ids.Token(envs.new_id(env))

    async def attempt() -> transact.Done[bool] | transact.Write[bool]:
        read = await engine.read(works.get(at, intent))
        timer = works.decode(at, intent, read.value(0))
        if timer is None or timer.work.state is WorkState.SETTLED:
            return transact.Done(False)
        batch = kv.Batch()
        fired = works.fire(batch, timer, token=token, worker=worker, now_us=read.time_us)
        await _post(engine, batch, at, fired)
        return transact.Write(batch, lambda _: True)

    return await transact.run(engine, env, attempt)


# --- Reading -------------------------------------------------------------------------------------------------------


async def _lease(engine: kv.Engine, at: ids.Address) -> leases.State:
    read = await engine.read(*leases.reads(at))
    return leases.decode(at, read.value(0), read.value(1), read.value(2))


async def _open(engine: kv.Engine, at: ids.Address, intent: ids.IntentId) -> tuple[works.Open, int]:
    read = await engine.read(works.get(at, intent))
    opened = works.decode(at, intent, read.value(0))
    if opened is None:
        raise errors.NotFound(f"intent {intent.hex()} is not open")
    return opened, read.time_us


def _check_claim(opened: works.Open, token: ids.Token) -> works.Open:
    if opened.work.state is not WorkState.CLAIMED or opened.work.token != token:
        raise errors.Closed(f"intent {opened.intent.hex()} is not claimed under this token any more")
    return opened


async def _post(engine: kv.Engine, batch: kv.Batch, at: ids.Address, item: inbox.Item) -> None:
    """Add an input to a batch that has a guard of its own."""
    read = await engine.read(worlds.get(at))
    worlds.expect_open(batch, worlds.decode(at, read.value(0)))
    inboxes.enqueue_once(batch, at, item)
    ready.leave(batch, at, priority=ready.NORMAL)
