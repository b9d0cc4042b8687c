"""Hints that a world has something to do. Lost or doubled, they cost time, never correctness.

A producer that saw one expects it; any other writes one, with the stamp of its item in the value. The holder takes it
away in the step that takes what it was for, or if there was nothing, in a batch that expects the very hint it saw.
Either way it looks into the inbox once more afterwards: whoever counted on the hint, or wrote one just before, is found
then.
"""

from __future__ import annotations

from worldline.base import limits
from worldline.codec import tuples
from worldline.keys import ready as keys
from worldline.model import ids
from worldline.store import kv


def get(at: ids.Address, *, priority: int) -> kv.Get:
    return kv.Get(keys.ready_key(at, priority))


def mark(batch: kv.Batch, at: ids.Address, *, priority: int, seen: bytes | None, append: int) -> None:
    """Leave a hint next to an append, unless one was seen there already or this batch leaves one.

    A hint that was seen is expected to be still there: whoever takes it away looks into the inbox once more afterwards,
    and so finds the item. If it was taken away meanwhile, the producer must read again and leave one of its own.
    """
    key = keys.ready_key(at, priority)
    if key in batch.puts:
        return
    if seen is None:
        batch.put(key, keys.PACKED, stamp=append)
    else:
        batch.expect(key, seen)


def leave(batch: kv.Batch, at: ids.Address, *, priority: int, stamp: kv.Stamp, seen: bytes | None = None) -> bytes:
    """Leave a hint by itself, for a world that may have been overlooked; or write one anew, so that all are woken.

    Returns the hint. Guard: the hint as it was seen, or that there was none.
    """
    key = keys.ready_key(at, priority)
    if seen is None:
        batch.absent(key)
    else:
        batch.expect(key, seen)
    raw = keys.PACKED + stamp
    batch.put(key, raw)
    return raw


def read_range(
    universe: ids.UniverseId, *, after: tuple[ids.Address, int] | None = None, count_max: int
) -> kv.Range:  # fmt: skip
    """Hints of all worlds, the most urgent priority first.

    Hints of worlds that others hold stand in between and stay. If the page says `more`, go on after the address and
    priority of the last one decoded.
    """
    begin, end = keys.ready(universe)
    if after is not None:
        begin = tuples.successor(keys.ready_key(*after))
    return kv.Range(begin, end, count_max=count_max)


def decode(universe: ids.UniverseId, page: kv.Page) -> list[tuple[ids.Address, int, bytes]]:
    """Address, priority and raw value of each hint."""
    hints = []
    for key, raw in page.items:
        if raw[: -limits.STAMP_BYTES] != keys.PACKED:
            keys.READY.unpack(raw[: -limits.STAMP_BYTES])
        priority, world = keys.ready_world(universe, key)
        hints.append((ids.Address(universe, world), priority, raw))
    return hints


def consume(batch: kv.Batch, at: ids.Address, *, priority: int) -> bool:
    """Take a hint away, whichever it is, in the step that takes what was read after it was seen.

    False if that step leaves one itself, with a message to its own world.
    """
    key = keys.ready_key(at, priority)
    if key in batch.puts:
        return False
    batch.delete(key)
    return True


def clear(batch: kv.Batch, at: ids.Address, *, priority: int, raw: bytes) -> None:
    """Take a hint away. Guard: it is the one that was seen."""
    batch.expect(keys.ready_key(at, priority), raw)
    batch.delete(keys.ready_key(at, priority))
