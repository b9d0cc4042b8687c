"""Getting inputs into worlds, wherever they are hosted.

An input goes straight to a world held in this process; else into the world's inbox, with a hint that it is ready. An
input that is acked was taken or is in the inbox; if neither can be found out, that is an error (`StoreUncertain`), and
the input is not sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import msgspec

from worldline.base import env as envs
from worldline.base import errors
from worldline.client import ask_order, known_worlds
from worldline.client.connection import Connection
from worldline.layers import inbox as inboxes
from worldline.layers import journal as journals
from worldline.layers import ready, worlds
from worldline.model import ids, inbox, payload
from worldline.model import world_records as world_model
from worldline.runtime import facts
from worldline.store import kv, transact
from worldline.worker.held_world import HeldWorld
from worldline.worker.waiting_input import Deferred, JournalPlace, Repeated, WaitingInput, new_stamp, was_handed


class Sending(msgspec.Struct, frozen=True):
    """Where an input went: straight into a step, or into the inbox. `stamp` is journaled with it either way.

    `repeated`: the same id was used before for the same input, which got this stamp then.
    """

    at: ids.Address
    applied: JournalPlace | None
    stamp: kv.Stamp
    since: int
    id: str = ""
    repeated: bool = False


async def hosted(connection: Connection, at: ids.Address) -> HeldWorld | None:
    """The world, if this process holds it or can."""
    if connection.host is None:
        return None
    connection.host.check()  # a host that has failed must not look like a world that is held elsewhere
    try:
        return await connection.host.worlds.hold(at)
    except errors.NotFound:
        return None
    except errors.Closed:
        world = worlds.find(at, (await connection.store.engine.read(worlds.get(at))).value(0))
        if world is not None and world.meta.status is world_model.Status.PAUSED:
            return None  # it takes input and does not run
        raise


def deliver(
    connection: Connection, at: ids.Address, item: inbox.Item, data: bytes, *, client_id: bytes | str | None = None
) -> Awaitable[Sending]:
    """Get an input to a world. Durable when it was awaited, which is at once. It comes behind every ask that came to
    this process before it.
    """
    # No host, no cycle to hand over to: everything goes through inboxes, where commits order it.
    if connection.host is None:
        return enqueue(connection, at, item, client_id=client_id, data=data)
    place = connection.arrivals.enter(at, item)
    if place is None:
        return _deliver(connection, at, item, data, client_id=client_id)
    return _deliver_in_line(connection, at, item, data, client_id=client_id, place=place)


async def _deliver_in_line(
    connection: Connection,
    at: ids.Address,
    item: inbox.Item,
    data: bytes,
    *,
    client_id: bytes | str | None,
    place: ask_order.AskPlace,
) -> Sending:
    try:
        return await _deliver(connection, at, item, data, client_id=client_id, place=place)
    finally:
        connection.arrivals.leave(at, place)


async def _deliver(
    connection: Connection,
    at: ids.Address,
    item: inbox.Item,
    data: bytes,
    *,
    client_id: bytes | str | None,
    place: ask_order.AskPlace | None = None,
) -> Sending:
    """Straight into a step if this process holds the world, or can; else into its inbox."""
    # One stamp for all attempts: a step whose answer was lost has journaled it, and the input is then known as taken.
    stamp = new_stamp(connection.store.env)
    # Bounded: a world that moves between processes again and again would keep the input out of its inbox.
    for attempt in range(3):
        held = _here(connection, at)
        if held is None:
            held = await _take(connection, at, place, is_foreign=not attempt)
            if held is None:
                break
        if connection.pressure.doubtful(item):  # else nothing is awaited here, so that inputs keep their order
            await connection.pressure.check(at, item)
        if place is not None and place.may_be_blocked:
            await place.wait_straight()
        try:
            done: asyncio.Future[JournalPlace] = asyncio.get_running_loop().create_future()
            handover = WaitingInput(item, data, done, client_id=client_id, stamp=stamp)
            handed = await _hand_over(connection, held, handover, done, place)
        except Deferred:  # the cycle has left the input to the inbox, so no other attempt at handing over
            if place is not None:
                await place.wait_through()
            break
        if handed is not None:
            return handed
        if place is not None:
            await place.wait_through()
    return await enqueue(connection, at, item, client_id=client_id, data=data)


async def _take(
    connection: Connection, at: ids.Address, place: ask_order.AskPlace | None, *, is_foreign: bool
) -> HeldWorld | None:
    """The world, if this process can hold it. Until that is known, what comes after an ask is not handed over; nor
    until the ask is in the inbox, unless the world was never here (`is_foreign`).
    """
    if place is not None:
        place.step_aside()
    held = await hosted(connection, at)
    if place is not None and is_foreign and held is None:
        # The world was never here, so nothing is in a cycle of this process that inbox items could overtake.
        place.go_straight()
    return held


def _here(connection: Connection, at: ids.Address) -> HeldWorld | None:
    """The world, if this process holds it already."""
    if connection.host is None:
        return None
    connection.host.check()
    return connection.host.worlds.peek(at)  # without awaiting: the plain input takes this way


async def _hand_over(
    connection: Connection,
    held: HeldWorld,
    handover: WaitingInput,
    done: asyncio.Future[JournalPlace],
    place: ask_order.AskPlace | None,
) -> Sending | None:
    """Straight into a step of a world that is held here. None: this process has lost it."""
    assert connection.host is not None
    began_us = (
        connection.store.env.wall_us() if connection.telemetry.on else 0
    )  # no clock call for telemetry that is off
    connection.pressure.enter(held, handover.item)
    try:
        if not connection.host.worlds.hand_to(held, handover):
            return None
        if place is not None:
            place.go_straight()
        applied = await done
    except Repeated as repeated:
        return Sending(held.at, None, repeated.stamp, 0, _text(handover.client_id, repeated.stamp), repeated=True)
    # Another process holds the world now. The stamp makes a second delivery harmless if the step was written after all.
    except errors.Fenced:
        return None
    finally:
        connection.pressure.leave(held)  # also after a failure, or the bound on waiting inputs would fill up
    if connection.telemetry.on:
        _tell_entered(connection, held.at, handover.item, data=handover.data, stamp=handover.stamp, since=began_us)
    if connection.pressure.stale(handover.item):
        await connection.pressure.sample(handover.item)
    stamp = kv.Stamp(handover.stamp)
    return Sending(held.at, applied, stamp, applied.height, _text(handover.client_id, stamp))


def _text(client_id: bytes | str | None, stamp: bytes) -> str:
    """An input's id for people. What was handed over without one is told apart by its stamp."""
    if client_id is None:
        return stamp.hex()
    return client_id.hex() if isinstance(client_id, bytes) else client_id


def _tell_entered(
    connection: Connection, at: ids.Address, item: inbox.Item, *, data: bytes, stamp: bytes, since: int
) -> None:
    fact = facts.Entered(at, item, data, kv.Stamp(stamp), was_handed(stamp), since, connection.store.env.wall_us())
    connection.telemetry.tell(fact)


async def enqueue(
    connection: Connection,
    at: ids.Address,
    item: inbox.Item,
    *,
    client_id: bytes | str | None = None,
    data: bytes = b"",
) -> Sending:
    """Put an input into a world's inbox, once, whatever happens to the answer. `data`: its payload."""
    began_us = connection.store.env.wall_us()
    await connection.pressure.check(at, item, sure=True)
    look = connection.pressure.wants(at, item)
    engine, env = connection.store.engine, connection.store.env
    used = client_id or envs.new_id(env)  # an id in any case: a commit whose answer was lost is found by it
    made_us = env.monotonic_us()
    window_us = connection.settings.dedupe_window_ms * 1000
    since = 0  # a repeat may have been taken long ago
    repeated = False
    known: known_worlds.KnownWorld | None = None
    carried = getattr(item, "payload", payload.EMPTY).ref  # of a large one

    async def write(world: worlds.WorldRecord, time_us: int) -> transact.Write[kv.Stamp]:
        batch = kv.Batch()
        if carried is not None:
            generation = await connection.blobs.generation()
            await connection.blobs.put(data, expected=carried)
            # A collection that began after the body was put may not know of it: then this conflicts, and the body is
            # put again.
            generation.expect(batch)
        worlds.expect_open(batch, world)
        # An id that was made here cannot have been sent by anyone else. It is not held against it that the store's
        # clock is far off, only that this very call has taken too long.
        fresh = client_id is None and env.monotonic_us() - made_us <= window_us
        index = inboxes.enqueue(batch, at, item, client_id=used, time_us=time_us, window_us=window_us, fresh=fresh)
        ready.leave(batch, at, priority=ready.priority_of(item))
        return transact.Write(batch, lambda ok: ok.stamps[index])

    async def attempt() -> transact.NothingToWrite[kv.Stamp] | transact.Write[kv.Stamp]:
        nonlocal since, known, repeated
        if known is not None:
            trusted, known = known, None  # once: stale meta conflicts, and the retry reads
            connection.pressure.check_inbox(at, item, None)
            since = trusted.height
            return await write(trusted.world, connection.recent.time_us(trusted))
        read = await engine.read(worlds.get(at), inboxes.get_seen(at, used), journals.get_head(at), *look)
        world = worlds.decode(at, read.value(0))
        seen = read.value(1)
        if seen is not None:
            repeated = True
            return transact.NothingToWrite(inboxes.seen_stamp(seen, item, client_id=used))
        connection.pressure.check_inbox(at, item, read.page(3) if look else None)
        since = journals.decode_head(read.value(2)).height
        connection.recent.note(world, height=since, time_us=read.time_us)
        return await write(world, read.time_us)

    # An id of the caller may have been used before, which only a read shows.
    if not look and client_id is None:
        known = connection.recent.find(at)
    stamp = await transact.run(engine, env, attempt)
    if connection.host is not None:
        connection.host.worlds.poke(at)  # a world that this process holds need not wait until its inbox is polled
    if connection.telemetry.on:
        _tell_entered(connection, at, item, data=data, stamp=stamp, since=began_us)
    await connection.pressure.sample(item)
    return Sending(at, None, stamp, since, _text(used, stamp), repeated=repeated)
