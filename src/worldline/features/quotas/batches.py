"""Quotas: what a universe may have, changed by operators, and what it was last counted to have.

The numbers of worlds and of forks that pin are exact. Each one that is made while its number is bounded rewrites the
record with a number that there are not more of, and expects the record as it was read: of two that are made at once,
one reads again. What is deleted is not subtracted; when the number is reached, the caller counts again. The bytes that
a universe has stored are counted by a walk through it, and are as old as that.

Each change of a quota is kept, in the same commit, as changes of grants are.
"""

from __future__ import annotations

import msgspec

from worldline.features.quotas import keyspace as keys
from worldline.features.quotas import records
from worldline.model import ids
from worldline.store import kv

_NONE = records.Quotas(0, records.UNBOUNDED)


class Quoted(msgspec.Struct, frozen=True):
    """The quota of a universe as it was read. `raw` is None if it has never had one."""

    universe: ids.UniverseId
    record: records.Quotas
    raw: bytes | None

    @property
    def quota(self) -> records.QuotaRecord:
        return self.record.quota


def get(universe: ids.UniverseId) -> kv.Get:
    return kv.Get(keys.quotas_key(universe))


def decode(universe: ids.UniverseId, raw: bytes | None) -> Quoted:
    found = keys.QUOTAS.get(raw)
    return Quoted(universe, _NONE if found is None else found, raw)


def get_usage(universe: ids.UniverseId) -> kv.Get:
    return kv.Get(keys.usage_key(universe))


def decode_usage(raw: bytes | None) -> records.Usage | None:
    """What was last counted, or None if nothing was."""
    return keys.USAGE.get(raw)


def change(batch: kv.Batch, known: Quoted, quota: records.QuotaRecord, *, time_us: int) -> None:
    """Another quota. Guard: the record as it was read. Worlds and pins are counted again by the next that is made."""
    number = known.record.changes + 1
    _replace(batch, known, records.Quotas(number, quota))
    # In the same batch: the log has every quota that was in force.
    batch.append(
        keys.log_prefix(known.universe), keys.QUOTA_CHANGE.pack(records.QuotaChangeRecord(number, quota, time_us))
    )


def count_on(batch: kv.Batch, known: Quoted, *, worlds: int | None, pins: int | None) -> None:
    """A world, or a fork that pins, is made in this batch: with it there are not more than so many. None: that number
    is not bounded. The batch has guards of its own.
    """
    assert known.raw is not None, "without a record nothing is bounded"
    made = known.record.made + 1  # also if the numbers stay: of two that are made at once, one must read again
    _replace(batch, known, msgspec.structs.replace(known.record, worlds=worlds, pins=pins, made=made))


def _replace(batch: kv.Batch, known: Quoted, record: records.Quotas) -> None:
    key = keys.quotas_key(known.universe)
    if known.raw is None:
        batch.absent(key)
    else:
        batch.expect(key, known.raw)
    batch.put(key, keys.QUOTAS.pack(record))


def publish(batch: kv.Batch, universe: ids.UniverseId, last_raw: bytes | None, counted: records.Usage) -> None:
    """Say what was counted. Guard: what was said before."""
    key = keys.usage_key(universe)
    if last_raw is None:
        batch.absent(key)
    else:
        batch.expect(key, last_raw)
    batch.put(key, keys.USAGE.pack(counted))


def log_range(universe: ids.UniverseId, *, count_max: int) -> kv.Range:
    """The changes, the newest first."""
    begin, end = keys.log(universe)
    return kv.Range(begin, end, count_max=count_max, reverse=True)


def decode_log(page: kv.Page) -> list[records.QuotaChangeRecord]:
    return [keys.QUOTA_CHANGE.unpack(raw) for _, raw in page.items]
