"""Getting inputs into worlds and answers out of them, wherever they are hosted.

An input goes straight to a world held in this process; else into the world's inbox, with a hint that it is ready. An
input that is acked was taken or is in the inbox; if neither can be found out, that is said (`StoreUncertain`), and it
is not sent again. An answer is an entry of the journal: told by the hub if the world is here, found by following the
journal if not. If the world comes here or leaves while a caller waits, the journal is looked at once more: the entry
may have been written elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import msgspec

from worldline.base import env as envs
from worldline.base import errors, failures
from worldline.client import known_worlds
from worldline.codec import structs
from worldline.kernel.events import Answer
from worldline.kernel.runs import Failure
from worldline.layers import inbox as inboxes
from worldline.layers import journal as journals
from worldline.layers import leases, ready, worlds
from worldline.model import ids, inbox, journal
from worldline.model import world as world_model
from worldline.model.journal import Kind
from worldline.roles import telemetry
from worldline.roles.hub import Chunk
from worldline.roles.world import reader, restore
from worldline.roles.world.held_world import Applied, Deferred, Handover, Hosted, Repeated, new_stamp, was_handed
from worldline.store import kv, transact

if TYPE_CHECKING:
    from worldline.client.sdk import Universe

log = logging.getLogger("worldline")

NOBODY_AFTER_SECONDS = 2.0
ELSEWHERE_SECONDS = 0.1  # how often the journal of a world that is not held here is looked at


class Sending(msgspec.Struct, frozen=True):
    """Where an input went: straight into a step, or into the inbox under a stamp."""

    at: ids.Address
    applied: Applied | None
    stamp: kv.Stamp | None
    since: int


async def hosted(universe: Universe, at: ids.Address) -> Hosted | None:
    """The world, if this process holds it or can."""
    if universe.host is None:
        return None
    universe.host.check()
    try:
        return await universe.host.worlds.hold(at)
    except errors.NotFound:
        return None
    except errors.Closed:
        world = worlds.find(at, (await universe.store.engine.read(worlds.get(at))).value(0))
        if world is not None and world.meta.status is world_model.Status.PAUSED:
            return None  # it takes input and does not run
        raise


async def deliver(
    universe: Universe, at: ids.Address, item: inbox.Item, data: bytes, *, client_id: bytes | str | None = None
) -> Sending:
    """Get an input to a world. Durable on return."""
    stamp = new_stamp(universe.store.env) if universe.host is not None else b""
    for _ in range(3):
        held = _here(universe, at) or await hosted(universe, at)
        if held is None:
            break
        if universe.pressure.effects_doubtful(item):
            await universe.pressure.check_effects(at, item)
        try:
            handed = await _hand_over(universe, held, Handover(item, data, client_id=client_id, stamp=stamp))
        except Deferred:
            break
        if handed is not None:
            return handed
    return await enqueue(universe, at, item, client_id=client_id, data=data)


def _here(universe: Universe, at: ids.Address) -> Hosted | None:
    """The world, if this process holds it already."""
    if universe.host is None:
        return None
    universe.host.check()
    return universe.host.worlds.peek(at)


async def _hand_over(universe: Universe, held: Hosted, handover: Handover) -> Sending | None:
    """Straight into a step of a world that is held here. None: it has left, and is wherever it is now."""
    assert universe.host is not None
    began_us = universe.store.env.wall_us() if universe.telemetry.on else 0
    done = handover.done = asyncio.get_running_loop().create_future()
    universe.pressure.enter(held, handover.item)
    try:
        if not universe.host.worlds.hand_over(held.at, handover):
            return None
        applied = await done
    except Repeated as repeated:
        return Sending(held.at, None, repeated.stamp, 0)
    except errors.Fenced:
        return None
    finally:
        universe.pressure.leave(held)
    if universe.telemetry.on:
        _tell_entered(universe, held.at, handover.item, data=handover.data, stamp=handover.stamp, since=began_us)
    if universe.pressure.effects_stale(handover.item):
        await universe.pressure.count_effects(handover.item)
    return Sending(held.at, applied, None, applied.height)


def _tell_entered(
    universe: Universe, at: ids.Address, item: inbox.Item, *, data: bytes, stamp: bytes, since: int
) -> None:
    fact = telemetry.Entered(at, item, data, kv.Stamp(stamp), was_handed(stamp), since, universe.store.env.wall_us())
    universe.telemetry.tell(fact)


async def enqueue(
    universe: Universe, at: ids.Address, item: inbox.Item, *, client_id: bytes | str | None = None, data: bytes = b""
) -> Sending:
    """Put an input into a world's inbox, once, whatever happens to the answer. `data`: its payload, for telemetry."""
    began_us = universe.store.env.wall_us()
    await universe.pressure.check_effects(at, item, sure=True)
    look = universe.pressure.wants(at, item)
    engine, env = universe.store.engine, universe.store.env
    used = client_id or envs.new_id(env)
    window_us = universe.settings.dedupe_window_ms * 1000
    since = 0  # a repeat may have been taken long ago
    known: known_worlds.Known | None = None

    def write(world: worlds.World, time_us: int) -> transact.Write[kv.Stamp]:
        batch = kv.Batch()
        worlds.expect_open(batch, world)
        index = inboxes.enqueue(batch, at, item, client_id=used, time_us=time_us, window_us=window_us)
        ready.leave(batch, at, priority=ready.priority_of(item))
        return transact.Write(batch, lambda ok: ok.stamps[index])

    async def attempt() -> transact.Done[kv.Stamp] | transact.Write[kv.Stamp]:
        nonlocal since, known
        if known is not None:
            trusted, known = known, None  # once: whoever was wrong reads
            universe.pressure.check_inbox(at, item, None)
            since = trusted.height
            return write(trusted.world, universe.recent.time_us(trusted))
        read = await engine.read(worlds.get(at), inboxes.get_seen(at, used), journals.get_head(at), *look)
        world = worlds.decode(at, read.value(0))
        seen = read.value(1)
        if seen is not None:
            return transact.Done(inboxes.seen_stamp(seen, item, client_id=used))
        universe.pressure.check_inbox(at, item, read.page(3) if look else None)
        since = journals.decode_head(read.value(2)).height
        universe.recent.note(world, height=since, time_us=read.time_us)
        return write(world, read.time_us)

    if not look and client_id is None:
        known = universe.recent.find(at)
    stamp = await transact.run(engine, env, attempt)
    if universe.host is not None:
        universe.host.worlds.poke(at)
    if universe.telemetry.on:
        _tell_entered(universe, at, item, data=data, stamp=stamp, since=began_us)
    await universe.pressure.count_effects(item)
    return Sending(at, None, stamp, since)


async def applied(universe: Universe, sending: Sending) -> int:
    """The height at which an input was taken."""
    if sending.applied is not None:
        return sending.applied.height
    assert sending.stamp is not None
    async for each in _entries(universe, sending.at, above=sending.since):
        if each.stamp == sending.stamp:
            return each.height
    raise AssertionError("following a journal does not end")


async def ask(
    universe: Universe, at: ids.Address, item: inbox.Item, data: bytes, correlation: str,
    *, client_id: bytes | str | None = None,
) -> tuple[bytes, int]:  # fmt: skip
    """Give an input that is answered, and wait for the answer. Returns it with the height at which it stands."""
    with expecting(universe, at, Kind.ANSWERED, correlation) as expected:
        sending = await deliver(universe, at, item, data, client_id=client_id)
        with durable():
            if sending.applied is not None:  # taken just now, so its answer has been told or will be
                found = await entry(universe, at, Kind.ANSWERED, correlation, sending.since - 1, expected=expected)
            else:
                found = await entry(universe, at, Kind.ANSWERED, correlation, sending.since)
            answer = structs.decode(Answer, await payload_of(universe, found))
    if answer.ok:
        return answer.data, found.height
    raise error_of(structs.decode(Failure, answer.data))


@contextmanager
def durable() -> Iterator[None]:
    """Around the waiting for an answer: if that fails, the error must not say that the input was not taken."""
    try:
        yield
    except errors.StoreError as error:
        raise errors.StoreUncertain(f"the input is durable, and its answer cannot be read now: {error}") from error


def expecting(
    universe: Universe, at: ids.Address, kind: Kind, correlation: str
) -> AbstractContextManager[asyncio.Future[journal.Entry] | None]:
    """An entry that is awaited, asked for before what leads to it is sent. None if no worlds are run here."""
    return nullcontext() if universe.host is None else universe.host.live.expecting(at, kind, correlation)


async def entry(
    universe: Universe, at: ids.Address, kind: Kind, correlation: str, since: int,
    *, expected: asyncio.Future[journal.Entry] | None = None,
) -> journal.Entry:  # fmt: skip
    """The first entry of a kind with a correlation, above a height; waiting for it if need be.

    `expected`: it was asked for before what leads to it was sent. Else it may have been written already.
    """
    if universe.host is None:
        return await _find(universe, at, kind, correlation, since)
    told = None if expected is None else await _told(universe, at, expected)
    while told is None and universe.host.worlds.holds(at):
        with universe.host.live.expecting(at, kind, correlation) as asked:
            found = await _already(universe, at, kind, correlation, since)
            told = found or await _told(universe, at, asked)
    return told or await _find(universe, at, kind, correlation, since)


async def _told(universe: Universe, at: ids.Address, expected: asyncio.Future[journal.Entry]) -> journal.Entry | None:
    """What the hub tells. None if the world is not held here, or was not all the time: the journal tells more then."""
    assert universe.host is not None
    while expected.done() or universe.host.worlds.holds(at):
        done, _ = await asyncio.wait([expected], timeout=NOBODY_AFTER_SECONDS)
        if done:
            try:
                return expected.result()
            except errors.Fenced:
                return None
        universe.host.check()
    return None


async def _already(
    universe: Universe, at: ids.Address, kind: Kind, correlation: str, since: int
) -> journal.Entry | None:
    top = await reader.head(universe.store.engine, at)
    if top.height <= since:
        return None
    found = await restore.read_entries(universe.store.engine, at, above=since, up_to=top.height)
    return next((each for each in found if each.kind is kind and each.correlation == correlation), None)


async def _find(universe: Universe, at: ids.Address, kind: Kind, correlation: str, since: int) -> journal.Entry:
    async for each in _entries(universe, at, above=since):
        if each.kind is kind and each.correlation == correlation:
            return each
    raise AssertionError("following a journal does not end")


async def _entries(universe: Universe, at: ids.Address, *, above: int) -> AsyncIterator[journal.Entry]:
    """Follow a journal, and say so when nobody seems to be writing it."""
    started_us = universe.store.env.monotonic_us()
    told = False
    async for each in reader.entries(universe.store.engine, at, above=above):
        if each is not None:
            yield each
        elif not told and universe.store.env.monotonic_us() - started_us > NOBODY_AFTER_SECONDS * 1_000_000:
            told = await _say_nobody(universe, at)


async def _say_nobody(universe: Universe, at: ids.Address) -> bool:
    """Tell the person who waits that no process hosts the world. Returns whether that was so."""
    if await is_hosted(universe, at):
        return False
    world = worlds.decode(at, (await universe.store.engine.read(worlds.get(at))).value(0))
    log.warning(
        "nobody hosts world %r (program %r) now: start a process with host=, or `worldline dev FILE --store %s`",
        world.meta.name, world.meta.program, universe.store.url,
    )  # fmt: skip
    return True


async def is_hosted(universe: Universe, at: ids.Address) -> bool:
    """Whether a living worker holds the world."""
    read = await universe.store.engine.read(*leases.reads(at))
    state = leases.decode(at, read.value(0), read.value(1), read.value(2))
    if state.holder is None:
        return False
    worker = ids.WorkerId(state.holder.worker)
    read = await universe.store.engine.read(leases.get_life(worker))
    life = leases.decode_life(worker, read.value(0))
    return life is not None and life.sign.incarnation == state.holder.incarnation and life.alive(read.time_us)


async def follow(universe: Universe, at: ids.Address, above: int | None) -> AsyncIterator[journal.Entry | Chunk]:
    start = (await reader.head(universe.store.engine, at)).height if above is None else above
    if universe.host is None:
        async for each in _entries(universe, at, above=start):
            yield each
        return
    with universe.host.live.following(at) as queue:
        async for live in _both(universe, at, start, queue):
            yield live


async def _both(
    universe: Universe, at: ids.Address, above: int, queue: asyncio.Queue[journal.Entry | Chunk | None]
) -> AsyncIterator[journal.Entry | Chunk]:
    """The journal first, then the live queue; back to the journal where the queue has a gap."""
    while True:
        top = await reader.head(universe.store.engine, at)
        if top.height > above:
            for each in await restore.read_entries(universe.store.engine, at, above=above, up_to=top.height):
                above = each.height
                yield each
        while True:
            held = universe.host is not None and universe.host.worlds.holds(at)
            try:
                async with asyncio.timeout(NOBODY_AFTER_SECONDS if held else ELSEWHERE_SECONDS):
                    live = await queue.get()
            except TimeoutError:
                break
            if live is None:
                break
            if isinstance(live, Chunk):
                yield live
            elif live.height > above:
                if live.height != above + 1:
                    break
                above = live.height
                yield live


async def payload_of(universe: Universe, found: journal.Entry) -> bytes:
    return await universe.blobs.get(found.blob) if found.blob else found.payload


def error_of(why: Failure) -> errors.Error:
    """The exception that an answer's failure is raised as."""
    if why.code == failures.Refused.code:
        return failures.Refused(why.message, data=why.data)
    for kind in (errors.NotFound, errors.Closed, errors.BadInput):
        if why.code == kind.code:
            return kind(why.message)
    if why.code == errors.IdReused.code:
        return errors.IdReused.of(why.message)
    if why.code in (errors.TooLarge.code, errors.EncodeError.code, errors.DecodeError.code):
        return errors.BadInput(why.message)
    return failures.RunFailed(why.message, code=why.code, data=why.data)
