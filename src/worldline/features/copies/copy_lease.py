"""Copies of a whole store under way: one backup of it at a time, and one restore into it.

A record with a token and a time says that one is. It is renewed while the copy is made. When its time has passed,
another may take its place: the next batch of the one before then conflicts.
"""

from __future__ import annotations

import msgspec

from worldline.features.copies import keyspace as keys
from worldline.features.copies import records
from worldline.store import kv


class CopyLease(msgspec.Struct, frozen=True):
    """A copy under way, as it was read or written."""

    key: bytes
    raw: bytes
    record: records.Copying


def get_backup() -> kv.Get:
    return kv.Get(keys.backup_key())


def get_restoring() -> kv.Get:
    return kv.Get(keys.restoring_key())


def decode(turn_get: kv.Get, raw: bytes | None) -> CopyLease | None:
    return None if raw is None else CopyLease(turn_get.key, raw, keys.COPYING.unpack(raw))


def begin(
    batch: kv.Batch, turn_get: kv.Get, last: CopyLease | None, *, token: bytes, what: str, until_us: int
) -> CopyLease:
    """Take the turn: there is none, or its time has passed. Guard: the record as it was read, or that there is none."""
    record = records.Copying(token, what, until_us)
    raw = keys.COPYING.pack(record)
    if last is None:
        batch.absent(turn_get.key)
    else:
        # Its holder may have renewed it since: then this batch conflicts.
        batch.expect(turn_get.key, last.raw)
    batch.put(turn_get.key, raw)
    return CopyLease(turn_get.key, raw, record)


def advance(batch: kv.Batch, turn: CopyLease, *, until_us: int) -> CopyLease:
    """Say that the copy continues. Guard: the record as it was last written."""
    # `batches` makes each record another one, also within one microsecond.
    record = msgspec.structs.replace(turn.record, time_us=until_us, batches=turn.record.batches + 1)
    raw = keys.COPYING.pack(record)
    batch.expect(turn.key, turn.raw)
    batch.put(turn.key, raw)
    return CopyLease(turn.key, raw, record)


def end(batch: kv.Batch, turn: CopyLease) -> None:
    """It is done, or given up. Guard: the record as it was last written."""
    batch.expect(turn.key, turn.raw)
    batch.delete(turn.key)
