"""Dead letters, from outside: the inputs that worlds could not take, and the two ways out of one. Needs no program.

A letter that is put back is a new input, under a new id. Many are put back or drained oldest first, in the order in
which they came.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

from worldline.base import env as envs
from worldline.base import errors
from worldline.client import listing
from worldline.client.connection import Connection
from worldline.codec import printable
from worldline.kernel import event_dispatch
from worldline.keys import inbox as inbox_keys
from worldline.layers import inbox as inboxes
from worldline.layers import ready, worlds
from worldline.model import ids, inbox, payload
from worldline.store import kv, paging, transact

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DeadLetter:
    """An input that its world could not take. `what` names it: the event's, message's or command's name; `data` is its
    payload, as canonical bytes: nothing if that was too large to be kept inline.
    """

    def __init__(self, connection: Connection, at: ids.Address, world: str, letter: inboxes.DeadLetterRecord) -> None:
        self.world = world
        self.id = letter.stamp.hex()
        self.reason = letter.dead.reason
        self.what, self.data = _content(letter)
        self.step = letter.dead.step
        self.time_us = letter.dead.time_us
        self._universe = connection
        self._at = at
        self._letter = letter

    @property
    def time(self) -> datetime:
        """When the world could not take it."""
        return _EPOCH + timedelta(microseconds=self.time_us)

    async def retry(self) -> None:
        """Put it back into the world's inbox, as a new input. `Conflicted` if it is gone: retried, or dropped."""
        await retry(self._universe, self._at, self._letter)

    async def drop(self) -> None:
        """Delete it. `Conflicted` if it is gone already."""
        await drop(self._universe, self._at, self._letter)

    def __repr__(self) -> str:
        return f"DeadLetter({self.what!r} of world {self.world!r}, {self.id!r}: {printable.shown(self.reason)})"


async def letters(
    connection: Connection, at: ids.Address, *, oldest_first: bool = False
) -> AsyncIterator[inboxes.DeadLetterRecord]:
    """A world's dead letters, the newest first, or the oldest."""
    begin, end = inbox_keys.dead(at)
    async for key, raw in paging.RangeItems(connection.store.engine, kv.Range(begin, end, reverse=not oldest_first)):
        yield inboxes.decode_dead([(key, raw)])[0]


async def of_world(
    connection: Connection, at: ids.Address, name: str, *, oldest_first: bool = False
) -> AsyncIterator[DeadLetter]:
    """The dead letters of one world."""
    async for letter in letters(connection, at, oldest_first=oldest_first):
        yield DeadLetter(connection, at, name, letter)


async def of_worlds(connection: Connection, chosen: listing.Filter) -> AsyncIterator[DeadLetter]:
    """The dead letters of these worlds: world by world, each world's newest first."""
    async for at, meta in listing.worlds_of(connection, chosen):
        async for letter in of_world(connection, at, meta.name):
            yield letter


async def drain(connection: Connection, at: ids.Address, name: str) -> AsyncIterator[DeadLetter]:
    """The dead letters, oldest first; each is deleted when the next is asked for. One that was retried or dropped
    meanwhile is not missed.
    """
    async for letter in letters(connection, at, oldest_first=True):
        yield DeadLetter(connection, at, name, letter)
        try:
            await drop(connection, at, letter)
        except errors.Conflicted:
            continue


async def retry_all(connection: Connection, at: ids.Address) -> int:
    """Put all dead letters that there are now back, oldest first. Returns how many."""
    found = [each async for each in letters(connection, at, oldest_first=True)]  # one that fails again is not met again
    for each in found:
        await retry(connection, at, each)
    return len(found)


async def drop(connection: Connection, at: ids.Address, letter: inboxes.DeadLetterRecord) -> None:
    """Delete a dead letter."""
    batch = kv.Batch()
    inboxes.drop_dead(batch, at, letter)
    if not await transact.applied(connection.store.engine, connection.store.env, batch):
        raise _gone(letter)


async def retry(connection: Connection, at: ids.Address, letter: inboxes.DeadLetterRecord) -> None:
    """Put a dead letter back. What it carries is kept: its reference stands in the inbox from now on."""
    engine, env = connection.store.engine, connection.store.env
    # Made once, outside of `attempt`: a retry after a lost answer finds it among the seen ids.
    client_id = envs.new_id(env)
    large = inboxes.refers_to(letter.dead)
    match inboxes.item_of(letter.dead.item):
        case inbox.InboxEvent(schema=schema, payload=carried):
            event_dispatch.check_outside(schema, await connection.blobs.load(carried))
        case inbox.Message(mode=inbox.MessageMode.TYPED, name=name):
            ids.check_event_name(name)

    async def attempt() -> transact.NothingToWrite[bool] | transact.Write[bool]:
        read = await engine.read(worlds.get(at), inboxes.get_dead(at, letter), inboxes.get_seen(at, client_id))
        # The stored bytes, not only the key: what was changed meanwhile is not what the caller looked at.
        if read.value(1) != letter.raw:
            return transact.NothingToWrite(read.value(2) is not None)  # an answer was lost, or it is gone
        batch = kv.Batch()
        if large is not None:
            generation = await connection.blobs.generation()
            # Inside the attempt: collection may have begun since, and the batch must expect the generation it was
            # touched in.
            await connection.blobs.touch_many([large])
            generation.expect(batch)
        worlds.expect_open(batch, worlds.decode(at, read.value(0)))
        inboxes.retry_dead(batch, at, letter, client_id=client_id, time_us=read.time_us)
        ready.leave(batch, at, priority=ready.NORMAL)
        return transact.Write(batch, lambda _: True)

    if not await transact.run(engine, env, attempt):
        raise _gone(letter)
    connection.wake()


def _gone(letter: inboxes.DeadLetterRecord) -> errors.Conflicted:
    return errors.Conflicted(f"dead letter {letter.stamp.hex()} is gone already")


def _content(letter: inboxes.DeadLetterRecord) -> tuple[str, bytes]:
    try:
        item = inbox_keys.ITEM.unpack(letter.dead.item)
    except errors.DecodeError:
        # An undecodable input is one of the reasons for a dead letter: it must be listed too.
        return "", letter.dead.item
    match item:
        case inbox.InboxEvent(schema=name, payload=carried) | inbox.Message(name=name, payload=carried):
            return name, _inline(carried)
        case inbox.Control(command=name, payload=carried):
            return name, _inline(carried)
        case inbox.EffectReceipt(payload=carried):
            return "receipt", _inline(carried)
        case inbox.TimerFired():
            return "timer", b""


def _inline(carried: payload.Payload) -> bytes:
    return carried.inline or b""
