"""The inbox: the one way into a world.

Producers append; the lease holder consumes in stamp order, deleting what it journals in the same batch. Every enqueue
carries a client id. The same id again finds the `seen` record: same item, the first stamp; another item, `IdReused`.

Records of ids are kept for the dedupe window from when a janitor first came across them, counted by the age of the
universe and by no clock (`layers/age.py`). Ids made by us are time-ordered, so one older than the window is
refused rather than taken for new. A janitor does not look at their records before they are as old: then they are kept
for two windows, and a producer that checked an id's age and was delayed for less than a window still finds its record.
Ids that clients choose carry no time; after the window such an id is a new one.

An item the world cannot take becomes a dead letter under its stamp and never blocks the next one. Items are bounded
(`ITEM_BYTES_MAX`) so that each fits into a journal entry and into a dead letter whole.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from worldline.base import env as envs
from worldline.base import errors, limits
from worldline.codec import digest, tuples
from worldline.keys import inbox as keys
from worldline.model import ids, inbox
from worldline.model.age import Age
from worldline.store import kv

# A letter always fits into a value: beside the longest reason, at four bytes for a character, and the other fields.
_DEAD_ITEM_BYTES_MAX = limits.VALUE_BYTES_MAX - 4 * limits.REASON_CHARACTERS_MAX - limits.KIB


class UnreadItem(msgspec.Struct, frozen=True):
    """One inbox item as it was read. `item` is None if the bytes cannot be decoded; `error` says why."""

    stamp: kv.Stamp
    raw: bytes
    item: inbox.Item | None
    error: str = ""
    trace: str = ""  # where the effect failed that a receipt is of
    tried: str = ""  # the attempts at it, if they are kept


class DeadLetterRecord(msgspec.Struct, frozen=True):
    """A dead letter as it was read."""

    stamp: kv.Stamp
    raw: bytes
    dead: inbox.DeadItem


def enqueue(
    batch: kv.Batch,
    at: ids.Address,
    item: inbox.Item,
    *,
    client_id: bytes | str,
    time_us: int,
    window_us: int,
    same_as: inbox.Item | None = None,
    fresh: bool = False,
) -> int:
    """Append an item under a client id. Returns the append's index. Guard: the id is new. `same_as`: what a repeat is
    compared with, if some of the item may differ then. `fresh`: the caller has made the id less than a window ago by
    its own monotonic clock, so that it does not matter what other clocks say.

    On `Conflict`, read the id again (`get_seen`, `seen_stamp`). The caller also expects the world's meta.
    """
    if not fresh:
        check_age(client_id, time_us=time_us, window_us=window_us)
    raw = _check_size(keys.ITEM.pack(item))
    compared = raw if same_as is None else keys.ITEM.pack(same_as)
    return _append_seen(batch, at, raw, client_id=client_id, time_us=time_us, compared=compared)


def enqueue_once(batch: kv.Batch, at: ids.Address, item: inbox.Item) -> int:
    """Append an item whose batch has a guard of its own that already makes it single (a head, a claim token)."""
    return batch.append(keys.item_prefix(at), _check_size(keys.ITEM.pack(item)))


def record_seen(
    batch: kv.Batch, at: ids.Address, item: inbox.Item, *, client_id: bytes | str, stamp: kv.Stamp, time_us: int
) -> None:
    """Record the id of an item that its step took without the inbox, under a stamp made for it. Guard: it is new."""
    key = keys.seen_key(at, client_id)
    batch.absent(key)
    batch.put(key, keys.SEEN.pack(inbox.SeenId(digest.sha256(keys.ITEM.pack(item)), time_us)) + stamp)


def get_seen(at: ids.Address, client_id: bytes | str) -> kv.Get:
    """What is known of a client id: `seen_stamp` reads it."""
    return kv.Get(keys.seen_key(at, client_id))


def check_age(client_id: bytes | str, *, time_us: int, window_us: int) -> None:
    """Refuse an id made so long ago that its record may be gone, or so far ahead that its record would stay."""
    # A text that a client chose carries no time.
    if isinstance(client_id, str):
        return
    made_us = envs.id_time_us(ids.check_id(client_id, "a client id"))
    if made_us < time_us - window_us:
        raise errors.DedupeExpired(
            f"id {client_id.hex()} is older than the dedupe window of {window_us // 1_000_000} s: "
            "whether it was used before cannot be known; send again under a new id if that is safe"
        )
    if made_us > time_us + window_us:
        raise errors.BadInput(
            f"id {client_id.hex()} is ahead of the store's time by more than {window_us // 1_000_000} s: "
            "make ids by `env.new_id` on a machine whose clock is right, or choose a text"
        )


def seen_stamp(record: bytes, item: inbox.Item, *, client_id: bytes | str) -> kv.Stamp:
    """The first stamp of an id's record, if it was for the same item. Else `IdReused`."""
    seen = keys.SEEN.unpack(record[: -limits.STAMP_BYTES])
    if seen.digest != digest.sha256(keys.ITEM.pack(item)):
        raise errors.IdReused(client_id.hex() if isinstance(client_id, bytes) else client_id)
    return kv.Stamp(record[-limits.STAMP_BYTES :])


def seen_us(record: bytes) -> int:
    """When an id's record was made, on the store's clock."""
    return keys.SEEN.unpack(record[: -limits.STAMP_BYTES]).time_us


def read_range(
    at: ids.Address, *, start: bytes = b"", count_max: int, bytes_max: int = limits.RANGE_BYTES_DEFAULT
) -> kv.Range:
    """Unread items in order. `start` is a mark: never above the `stable` of an earlier page."""
    begin, end = keys.items(at, start=start)
    return kv.Range(begin, end, count_max=count_max, bytes_max=bytes_max)


def next_mark(page: kv.Page) -> kv.Stamp:
    """Where the next scan of an inbox may start, after one that started at a mark or at the beginning.

    Below the first item that is unread nothing is left, and below `stable` nothing can appear. The items of the page
    count as unread in any case: a step that consumes them may fail, and it may leave some.
    """
    if not page.items:
        return page.stable
    return min(kv.Stamp(keys.stamp_of(page.items[0][0])), page.stable)


def decode(items: Iterable[tuple[bytes, bytes]]) -> list[UnreadItem]:
    return [_unread(kv.Stamp(keys.stamp_of(key)), raw) for key, raw in items]


def consume(batch: kv.Batch, at: ids.Address, stamps: Iterable[bytes]) -> None:
    """Delete what the step journaled. In the step's own batch, so nothing is lost and nothing repeats."""
    for stamp in stamps:
        batch.delete(keys.item_key(at, stamp))


def bury(batch: kv.Batch, at: ids.Address, unread: UnreadItem, *, reason: str, step: int, time_us: int) -> None:
    """Move an item that the world cannot take to the dead letters. In the step's own batch, and it always fits.

    The reason may be any text, as an exception's may be. Bytes that no `enqueue` would have taken are cut.
    """
    batch.delete(keys.item_key(at, unread.stamp))
    if len(unread.raw) > _DEAD_ITEM_BYTES_MAX:
        reason = f"cut from {len(unread.raw)} bytes: {reason}"
    text = reason[: limits.REASON_CHARACTERS_MAX].encode("utf-8", "backslashreplace").decode()
    # The reason is cut twice: what has no UTF-8 gets longer when it is spelled out.
    letter = inbox.DeadItem(unread.raw[:_DEAD_ITEM_BYTES_MAX], text[: limits.REASON_CHARACTERS_MAX], step, time_us)
    batch.put(keys.dead_key(at, unread.stamp), keys.DEAD.pack(letter))


def dead_range(at: ids.Address, *, after: bytes = b"", count_max: int) -> kv.Range:
    """Dead letters in the order of their stamps, those behind `after` only."""
    begin, end = keys.dead(at)
    if after:
        begin = tuples.successor(keys.dead_key(at, after))
    return kv.Range(begin, end, count_max=count_max)


def decode_dead(items: Iterable[tuple[bytes, bytes]]) -> list[DeadLetterRecord]:
    return [DeadLetterRecord(kv.Stamp(keys.stamp_of(key)), raw, keys.DEAD.unpack(raw)) for key, raw in items]


def get_dead(at: ids.Address, letter: DeadLetterRecord) -> kv.Get:
    """The letter's record, as it is now."""
    return kv.Get(keys.dead_key(at, letter.stamp))


def refers_to(letter: inbox.DeadItem) -> bytes | None:
    """The address of what a dead letter carries, if that is large. Bytes that are no item refer to nothing."""
    try:
        item = keys.ITEM.unpack(letter.item)
    except errors.DecodeError:
        return None
    return item_refers_to(item)


def item_refers_to(item: inbox.Item) -> bytes | None:
    """The address of an item's payload, if that is large."""
    return item.payload.ref if hasattr(item, "payload") else None


def retry_dead(batch: kv.Batch, at: ids.Address, letter: DeadLetterRecord, *, client_id: bytes, time_us: int) -> int:
    """Put a dead letter back as a new input, under a new id. Returns the append's index. The caller expects the meta.

    Guards: the letter is still there, and the id is new. The letter alone would not do: that it is gone, found after a
    lost answer, may mean that another caller dropped it.
    """
    drop_dead(batch, at, letter)
    return _append_seen(batch, at, _check_size(letter.dead.item), client_id=client_id, time_us=time_us)


def drop_dead(batch: kv.Batch, at: ids.Address, letter: DeadLetterRecord) -> None:
    """Forget a dead letter. Guard: it is still there."""
    key = keys.dead_key(at, letter.stamp)
    batch.expect(key, letter.raw)
    batch.delete(key)


def made_range(at: ids.Address, *, before_us: int, start: bytes = b"", count_max: int) -> kv.Range:
    """Records of ids that we made before this time, from this key on. The time only says where to look."""
    millis = max(0, before_us) // 1000
    # Ids begin with their milliseconds in six bytes: this is the lowest id of that time.
    begin, end = keys.seen_made_before(at, millis.to_bytes(6, "big") + bytes(limits.ID_BYTES - 6))
    return kv.Range(min(max(begin, start), end), end, count_max=count_max)


def chosen_range(at: ids.Address, *, start: bytes = b"", count_max: int) -> kv.Range:
    """Records of ids that clients chose, from this key on."""
    begin, end = keys.seen_chosen(at)
    return kv.Range(max(begin, start), end, count_max=count_max)


def forget(batch: kv.Batch, items: Iterable[tuple[bytes, bytes]], *, now: Age, window_us: int) -> int:
    """Drop those of these records that were there a window ago, and note of the others how old the universe is. Returns
    how many go. Guards: each as it was read. `now`: read together with them.
    """
    count = 0
    for key, raw in items:
        seen, stamp = keys.SEEN.unpack(raw[: -limits.STAMP_BYTES]), raw[-limits.STAMP_BYTES :]
        # Noted now, and dropped a window later: a record does not say how old the universe was when it was made.
        if not seen.age_us:
            batch.expect(key, raw)
            batch.put(key, keys.SEEN.pack(msgspec.structs.replace(seen, age_us=now.age_us)) + stamp)
        elif now.has_passed(window_us, since_us=seen.age_us):
            batch.expect(key, raw)
            batch.delete(key)
            count += 1
    return count


def unaged(record: bytes) -> bytes:
    """A record of an id, without its stamp, as it was before a janitor came across it: for one of another universe."""
    return keys.SEEN.pack(msgspec.structs.replace(keys.SEEN.unpack(record), age_us=0))


def _append_seen(
    batch: kv.Batch, at: ids.Address, raw: bytes, *, client_id: bytes | str, time_us: int, compared: bytes | None = None
) -> int:
    index = batch.append(keys.item_prefix(at), raw)
    key = keys.seen_key(at, client_id)
    batch.absent(key)
    # The record ends with the stamp of this append, which only the commit knows.
    batch.put(key, keys.SEEN.pack(inbox.SeenId(digest.sha256(compared or raw), time_us)), stamp=index)
    return index


def _check_size(raw: bytes) -> bytes:
    if len(raw) > limits.ITEM_BYTES_MAX:
        raise errors.TooLarge("inbox item", size=len(raw), limit=limits.ITEM_BYTES_MAX)
    return raw


def item_of(raw: bytes) -> inbox.Item | None:
    """The item that these bytes are; None if they cannot be decoded."""
    return _unread(kv.ZERO_STAMP, raw).item


def _unread(stamp: kv.Stamp, raw: bytes) -> UnreadItem:
    try:
        return UnreadItem(stamp, raw, keys.ITEM.unpack(raw))
    # Returned, not raised: an item that cannot be read must not block those behind it.
    except errors.DecodeError as error:
        return UnreadItem(stamp, raw, None, str(error))
