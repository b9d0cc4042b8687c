"""The keys that the records of a world file become: in which order records come, and what each may write.

Both the check of a file and the import that makes a world of it put its records through this, so nothing is written
that was not checked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from worldline.base import errors, limits
from worldline.codec import structs, tuples
from worldline.features.copies import import_batches, records, world_export
from worldline.features.copies.world_file import Tag
from worldline.kernel import event_dispatch, poison
from worldline.keys import inbox as inbox_keys
from worldline.layers import inbox as inboxes
from worldline.layers import messages
from worldline.model import ids, inbox, journal, payload, snapshots
from worldline.store import kv

_ANSWERS: Final = (inbox.EffectReceipt, inbox.TimerFired)
_ORDER: Final = (
    Tag.WORLD,
    Tag.SNAPSHOT,
    Tag.DROPPED,
    Tag.SEGMENT,
    Tag.DEAD,
    Tag.SEEN,
    Tag.UNREAD,
    Tag.SEALED,
    Tag.SUBJECT,
)


class FileKeys:
    """The records of one file, one after the other, without blobs. `at`: the world that they become."""

    def __init__(self, at: ids.Address) -> None:
        self._at = at
        self._place = -1  # in `_ORDER`, of the last record
        self.unread = self.answers = self.dead = self.snapshots = self.segments = 0

    def order(self, tag: int) -> Tag:
        """What comes next. `DecodeError` if it does not belong there."""
        place = _ORDER.index(Tag(tag)) if tag in _ORDER else -1
        # The record of the world comes first and once: what follows is checked against it.
        if place < max(self._place, 0) or (place == 0) is not (self._place < 0):
            raise errors.DecodeError(f"a record {tag} does not belong here")
        self._place = place
        return _ORDER[place]

    @property
    def has_begun(self) -> bool:
        return self._place >= 0

    def put(self, batch: kv.Batch, tag: Tag, data: bytes, *, age_us: int = 0) -> list[bytes]:
        """Add the keys of a record. Returns the addresses of the blobs that an input among them refers to. `age_us`: of
        the universe that they become part of.
        """
        match tag:
            case Tag.SNAPSHOT:
                import_batches.put_snapshot(
                    batch, self._at, structs.decode(snapshots.StateSnapshot, data), age_us=age_us
                )
                self.snapshots += 1
            case Tag.DROPPED:
                import_batches.put_dropped(batch, self._at, structs.decode(journal.DroppedEntries, data))
            case Tag.SEGMENT:
                import_batches.put_segment(batch, self._at, structs.decode(journal.Segment, data), age_us=age_us)
                self.segments += 1
            case Tag.DEAD:
                return self._put_dead(batch, inbox_keys.DEAD.unpack(data))
            case Tag.SEEN:
                seen = structs.decode(records.CopiedSeenId, data)
                _check_seen(seen.seen, seen.record[: -limits.STAMP_BYTES])
                import_batches.put_seen(batch, self._at, seen)
            case Tag.SEALED:
                import_batches.put_sealed(batch, self._at, structs.decode(records.Apart, data))
            case Tag.SUBJECT:
                import_batches.put_subject(batch, self._at, structs.decode(records.Apart, data))
            case Tag.UNREAD:
                return self._put_unread(batch, structs.decode(records.CopiedInput, data))
            case _:
                raise errors.DecodeError(f"a record {tag} has no keys")
        return []

    def _put_unread(self, batch: kv.Batch, unread: records.CopiedInput) -> list[bytes]:
        if len(unread.item) > limits.ITEM_BYTES_MAX:
            raise errors.DecodeError(f"an input of {len(unread.item)} bytes; the limit is {limits.ITEM_BYTES_MAX}")
        if unread.seen:
            _check_seen(unread.seen, unread.record)
        item = inboxes.item_of(unread.item)
        needed = world_export.refs(unread.item)
        # Answers are for open effects of the exported world; the one that is made has none of these.
        if isinstance(item, _ANSWERS) or (isinstance(item, inbox.Message) and poison.is_reply(item)):
            self.answers += 1
            return needed
        if isinstance(item, inbox.Message):
            unread = msgspec.structs.replace(unread, item=inbox_keys.ITEM.pack(_hearsay(item)))
        elif isinstance(item, inbox.InboxEvent) and item.schema != ids.ENVELOPE:
            _check_name(item.schema)
        import_batches.put_unread(batch, self._at, unread)
        self.unread += 1
        return needed

    def _put_dead(self, batch: kv.Batch, letter: inbox.DeadItem) -> list[bytes]:
        """A dead letter can be retried: then it comes as an input out of a file, too."""
        item, needed = inboxes.item_of(letter.item), world_export.refs(letter.item)
        if isinstance(item, inbox.Message):
            letter = msgspec.structs.replace(letter, item=inbox_keys.ITEM.pack(_hearsay(item)))
        self.dead += 1
        import_batches.put_dead(batch, self._at, inbox_keys.DEAD.pack(letter), number=self.dead)
        return needed


async def check_envelope(unread: records.CopiedInput, load: Callable[[payload.Payload], Awaitable[bytes]]) -> None:
    """Refuse an unread event of a file that says which world has sent it. Other names are checked with its keys."""
    item = inboxes.item_of(unread.item)
    if isinstance(item, inbox.InboxEvent) and item.schema == ids.ENVELOPE:
        try:
            event_dispatch.check_outside(item.schema, await load(item.payload))
        except errors.ReservedName as error:
            raise errors.DecodeError(f"an unread input: {error}") from error


def _check_name(schema: str) -> None:
    """Refuse an unread event that could not have come through a door."""
    try:
        ids.check_event_name(schema)
    except errors.ReservedName as error:
        raise errors.DecodeError(f"an unread input: {error}") from error


def _hearsay(message: inbox.Message) -> inbox.Message:
    """A message out of a file: its sender is what the file says, so it is not believed, and nothing is answered.
    `DecodeError` if it has a name that no world can send.
    """
    reserved = messages.check_name(message)
    if reserved is not None and not poison.is_reply(message):
        raise errors.DecodeError(f"a message: {reserved}")
    return msgspec.structs.replace(message, reply=inbox.Reply.NONE).vouched(from_file=True)


def _check_seen(seen: bytes, record: bytes) -> None:
    """The end of the key of an id, and its record: nothing else may be written by a file."""
    match tuples.unpack(seen):
        case (0, tuples.Uuid()) | (1, bytes()) | (2, bytes()):
            inbox_keys.SEEN.unpack(record)
        case _:
            raise errors.DecodeError("not an id that was seen")
