"""Messages from world to world.

A message is appended to the destination's inbox in the sender's own step (`post`), so it is sent exactly when the step
is committed, and once. A destination that is unknown or closed is the sender's to handle: `check_destination` says so
before the step is built, and the destination's meta is expected in the batch, so it still holds at the commit.

`deliver` is the other way in, for a sender whose step cannot be in the same batch (another store, another universe): an
effect that may be tried many times, made single by the message's id in the destination's `seen` records. Those are kept
for the dedupe window, so a message is delivered in the first half of it alone: as long as the clocks of two stores
differ by less than the other half, the record of an earlier attempt is still there.

How much of an inbox is unread messages of other universes is known by small records, which come with a message and go
with the step that takes it: a universe that may send has a share of an inbox and no more
(`features/abroad/delivery_effects.py`).

Per destination, messages are taken in inbox order. Between worlds there is no order; `from_world` and `from_step` say
what a message came after.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from worldline.base import errors
from worldline.keys import inbox as keys
from worldline.layers import inbox as inboxes
from worldline.layers import worlds
from worldline.model import ids, inbox
from worldline.model import world_records as world_model
from worldline.store import kv

_ITEM_BYTES = 256  # of a message without its payload, about


class ForeignBacklog(msgspec.Struct, frozen=True):
    """How much of an inbox is unread messages of other universes."""

    items: int = 0
    bytes: int = 0


def check_destination(destination: worlds.WorldRecord | None) -> str | None:
    """Why a message cannot be sent there, or None if it can. The reason goes into the sender's error receipt."""
    if destination is None:
        return "no such world"
    if destination.meta.status not in world_model.TAKES_INPUT:
        return f"world {destination.meta.name!r} is {destination.meta.status.name.lower()}"
    return None


def check_name(message: inbox.Message) -> str | None:
    """Why no world may send a message of this name, or None if it may. Said by the door, not where user code sends it:
    a refusal is an answer, which is journaled, so a world that has sent such a message before still replays.
    """
    try:
        if message.mode is inbox.MessageMode.TYPED:
            ids.check_event_name(message.name)
    except errors.ReservedName as error:
        return str(error)
    return None


def post(batch: kv.Batch, destination: worlds.WorldRecord, message: inbox.Message) -> int:
    """Add a message to the sender's step. Returns the append's index; the batch's guard is the sender's head."""
    _check(message)
    worlds.expect_open(batch, destination)
    return inboxes.enqueue_once(batch, destination.at, message)


def deliver(
    batch: kv.Batch, destination: worlds.WorldRecord, message: inbox.Message, *, time_us: int, window_us: int
) -> int:
    """Add a message by itself. Returns the append's index. Guard: its id is new at the destination."""
    _check(message)
    worlds.expect_open(batch, destination)
    # Only other universes have a share of an inbox; what worlds of this one send is not counted.
    if message.from_universe != destination.at.universe:
        size = message.payload.size + _ITEM_BYTES
        batch.put(_brought_key(destination.at, message), keys.BROUGHT.pack(inbox.Brought(size)))
    return inboxes.enqueue(
        batch,
        destination.at,
        message,
        client_id=_client_id(message),
        time_us=time_us,
        window_us=window_us,
        same_as=_unnamed(message),  # the sender may have been renamed since the first attempt
    )


def brought_range(destination: ids.Address, *, count_max: int) -> kv.Range:
    """The unread messages that other universes have brought: `brought` reads them."""
    begin, end = keys.brought(destination)
    return kv.Range(begin, end, count_max=count_max)


def brought(destination: ids.Address, page: kv.Page, universe: ids.UniverseId) -> tuple[ForeignBacklog, ForeignBacklog]:
    """What one universe has brought, and what all others have; both are estimates from below if there is more."""
    mine, every = ForeignBacklog(), ForeignBacklog()
    prefix = keys.brought_prefix(destination, universe)
    for key, raw in page.items:
        size = keys.BROUGHT.unpack(raw).size
        every = ForeignBacklog(every.items + 1, every.bytes + size)
        if key.startswith(prefix):
            mine = ForeignBacklog(mine.items + 1, mine.bytes + size)
    return mine, every


def take_brought(batch: kv.Batch, destination: ids.Address, messages: Iterable[inbox.Message]) -> None:
    """Note that these messages are read: their senders may bring others. In the batch of the step that takes them."""
    for each in messages:
        batch.delete(_brought_key(destination, each))


def _brought_key(destination: ids.Address, message: inbox.Message) -> bytes:
    sender = ids.Address(ids.UniverseId(message.from_universe), ids.WorldId(message.from_world))
    return keys.brought_key(destination, sender, message.message)


def is_too_old(*, sent_us: int, time_us: int, window_us: int) -> bool:
    """Whether a message has been on its way for so long that it may have been taken and forgotten. One from so far
    ahead by the destination's clock is refused too: then it is not known how old it is.
    """
    return abs(time_us - sent_us) > window_us // 2


def get_seen(destination: ids.Address, message: inbox.Message) -> kv.Get:
    """What the destination knows of this message: `seen_stamp` reads it."""
    return inboxes.get_seen(destination, _client_id(message))


def seen_stamp(record: bytes, message: inbox.Message) -> kv.Stamp:
    """The stamp this message was taken under before. `IdReused` if that was another one."""
    return inboxes.seen_stamp(record, _unnamed(message), client_id=_client_id(message))


def _unnamed(message: inbox.Message) -> inbox.Message:
    """What is the same whenever it is sent: between two attempts, its sender may have got another name."""
    return msgspec.structs.replace(message, universe="", world="")


def _client_id(message: inbox.Message) -> str:
    """Message ids are digests, not time-ordered, so they are filed with the ids that clients choose.

    The sender is part of it: two senders can never take each other's messages for repeats.
    """
    return f"{ids.MESSAGE_PREFIX}{message.from_universe.hex()}:{message.from_world.hex()}:{message.message.hex()}"


def _check(message: inbox.Message) -> None:
    ids.check_id(message.message, "a message id")
    ids.check_id(message.from_universe, "the sender's universe id")
    ids.check_id(message.from_world, "the sender's world id")
    ids.check_name(message.name, "a message's schema or inbox")
    if message.from_step < 1:
        raise errors.BadInput("a message is sent by a step, and steps count from 1")
