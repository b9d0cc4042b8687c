"""Which segments a world has: the records of its index, read. What is in a segment is in its body."""

from __future__ import annotations

import msgspec

from worldline.base import errors
from worldline.keys import segments as keys
from worldline.model import ids, journal
from worldline.store import kv


class Indexed(msgspec.Struct, frozen=True):
    """A segment of a world, as it was read; or what stands for those that were dropped."""

    record: journal.Segment | journal.DroppedEntries
    raw: bytes


def last_range(at: ids.Address) -> kv.Range:
    begin, end = keys.segments(at)
    return kv.Range(begin, end, count_max=1, reverse=True)


def first_range(at: ids.Address, *, count_max: int) -> kv.Range:
    return kv.Range(*keys.segments(at), count_max=count_max)


def decode(at: ids.Address, page: kv.Page) -> list[Indexed]:
    found: list[Indexed] = []
    for key, raw in page.items:
        record = keys.unpack(raw)
        if keys.segment_height(at, key) != record.last_height:
            raise errors.DecodeError(f"the segment up to height {record.last_height} is filed elsewhere")
        found.append(Indexed(record, raw))
    return found


def decode_last(at: ids.Address, page: kv.Page) -> Indexed | None:
    return next(iter(decode(at, page)), None)
