"""The history of a store that real processes write: recorded in the store itself, and read like the simulator's.

`Recording` stands between a process and its engine. To every batch it adds appends that hold the batch itself, who sent
it and when, so a batch and its record are applied together or not at all, whatever happens to the process, its server
or the answer. Reading them back gives every commit there ever was, and nothing else.

`replay` goes through them as the simulation's own store does: one after the other on a plain copy, each of them looked
at by `Audit`. On LMDB stamps are in the order of commits. On PostgreSQL commits that ran side by side may have become
visible in another order than that of their stamps, so there the server is asked when it committed each transaction. If
a commit's expectations do not hold when its turn has come, the store was not serial: K1.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Sequence

import asyncpg
import msgspec

from worldline.base import limits
from worldline.codec import tuples
from worldline.sim.check.audit import Audit
from worldline.sim.runtime import sim_loop
from worldline.sim.runtime.truth import AppliedBatch
from worldline.store import kv

PREFIX = tuples.pack((200,))  # none of the project's own keys begin so
END = tuples.pack((201,))
PART_BYTES = limits.VALUE_BYTES_MAX - limits.KIB


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One batch as it was sent."""

    host: str
    life: int
    time_us: int  # on the sender's clock, before it was sent; all processes of a test share one machine
    expects: list[tuple[bytes, bytes | None]]
    puts: list[kv.Put]
    deletes: list[bytes]
    ranges: list[tuple[bytes, bytes]]
    appends: list[kv.Append]

    def batch(self) -> kv.Batch:
        batch = kv.Batch()
        batch.expects.update(self.expects)
        batch.puts.update({put.key: put for put in self.puts})
        batch.deletes.update(dict.fromkeys(self.deletes))
        batch.ranges.extend(self.ranges)
        batch.appends.extend(self.appends)
        return batch


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a record, small enough for a value."""

    index: int
    of: int
    data: bytes


class Committed(msgspec.Struct, frozen=True):
    """A record that is in the store, the stamps of its own appends, and when its turn is."""

    record: Record
    stamps: tuple[kv.Stamp, ...]
    version: int
    turn: int


class Recording:
    """An engine whose commits leave a record."""

    def __init__(self, engine: kv.Engine, now_us: Callable[[], int], *, host: str, life: int) -> None:
        self._engine = engine
        self._now_us = now_us
        self._host = host
        self._life = life

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        return await self._engine.read(*requests)

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        outcomes = await self._engine.commit(*[self._recorded(batch) for batch in batches])
        return [
            kv.Ok(outcome.stamps[: len(batch.appends)]) if isinstance(outcome, kv.Ok) else outcome
            for batch, outcome in zip(batches, outcomes, strict=True)
        ]

    def _recorded(self, batch: kv.Batch) -> kv.Batch:
        assert not batch.counts, "no layer counts yet; the replay would need to"
        record = Record(
            self._host,
            self._life,
            self._now_us(),
            list(batch.expects.items()),
            list(batch.puts.values()),
            list(batch.deletes),
            list(batch.ranges),
            list(batch.appends),
        )
        added = record.batch()
        data = msgspec.msgpack.encode(record)
        pieces = [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)]
        for index, piece in enumerate(pieces):
            added.append(PREFIX, msgspec.msgpack.encode(Part(index, len(pieces), piece)))
        return added

    async def wait(self, prefix: bytes, seen: int, timeout_ms: int) -> bool:
        return await self._engine.wait(prefix, seen, timeout_ms)

    async def durability(self) -> kv.Durability:
        return await self._engine.durability()

    async def close(self) -> None:
        await self._engine.close()


def split(found: dict[bytes, bytes]) -> tuple[list[Committed], dict[bytes, bytes]]:
    """The history in the order of its stamps, and what there is besides."""
    committed: list[Committed] = []
    parts: list[bytes] = []
    for key in sorted(key for key in found if PREFIX <= key < END):
        part = msgspec.msgpack.decode(found[key], type=Part)
        assert part.index == len(parts), "the parts of a record have stamps that follow each other"
        parts.append(part.data)
        if len(parts) == part.of:
            record = msgspec.msgpack.decode(b"".join(parts), type=Record)
            version, last = _stamp(key)
            stamps = kv.stamps(version, last - part.index - len(record.appends), len(record.appends))
            committed.append(Committed(record, stamps, version, len(committed)))
            parts = []
    return committed, {key: value for key, value in found.items() if not PREFIX <= key < END}


def _stamp(key: bytes) -> tuple[int, int]:
    """The version and the ordinal of the stamp that a key ends in."""
    return int.from_bytes(key[-limits.STAMP_BYTES : -4], "big"), int.from_bytes(key[-4:], "big")


async def in_order(committed: list[Committed], url: str) -> list[Committed]:
    """A history in the order of its commits."""
    if "://" not in url:
        return committed
    parts = urllib.parse.urlsplit(url)
    query = urllib.parse.parse_qs(parts.query)
    query.pop("schema", None)
    plain = urllib.parse.urlunsplit(parts._replace(query=urllib.parse.urlencode(query, doseq=True)))
    raw = await asyncpg.connect(plain)
    try:
        rows = await raw.fetch(
            "SELECT xid, extract(epoch FROM pg_xact_commit_timestamp(xid::text::xid8::xid)) * 1000000 AS time_us "
            "FROM unnest($1::bigint[]) AS xid",
            list(dict.fromkeys(each.version for each in committed)),
        )
    finally:
        await raw.close()
    times = {row["xid"]: int(row["time_us"]) for row in rows}
    timed = [msgspec.structs.replace(each, turn=times[each.version]) for each in committed]
    return sorted(timed, key=lambda each: each.turn)


def replay(history: Sequence[Committed], audit: Audit) -> dict[bytes, bytes]:
    """Apply a history to nothing, audited. Returns what the store must hold."""
    copy: dict[bytes, bytes] = {}
    waiting = list(reversed(history))
    while waiting:
        chosen = _next(waiting, copy)
        if chosen is None:
            record = waiting[-1].record
            audit.broken("K1", f"a commit of {record.host}/{record.life} was applied whose expectations did not hold")
            return copy
        _apply(copy, waiting.pop(chosen), len(history) - len(waiting), audit)
    return copy


def _next(waiting: list[Committed], copy: dict[bytes, bytes]) -> int | None:
    """Whose turn it is: the last; or one of the same microsecond that must have come before it."""
    index = len(waiting) - 1
    while index >= 0 and waiting[index].turn == waiting[-1].turn:
        if kv.conflict(waiting[index].record.batch(), copy.get) is None:
            return index
        index -= 1
    return None


def _apply(copy: dict[bytes, bytes], made: Committed, number: int, audit: Audit) -> None:
    record, batch = made.record, made.record.batch()
    before = {key: copy.get(key) for key in (*batch.puts, *batch.deletes)}
    for begin, end in batch.ranges:
        for key in [key for key in copy if begin <= key < end]:
            del copy[key]
    for key in batch.deletes:
        copy.pop(key, None)
    for put in batch.puts.values():
        copy[put.key] = put.value if put.stamp is None else put.value + made.stamps[put.stamp]
    for append, stamp in zip(batch.appends, made.stamps, strict=True):
        copy[append.prefix + stamp] = append.value
    audit.look(
        AppliedBatch(number, record.time_us, sim_loop.SimMachine(record.host, record.life), batch, made.stamps, before)
    )
