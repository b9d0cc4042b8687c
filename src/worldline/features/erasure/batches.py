"""Erasing personal values; the ledger of erasures; and whether what was erased is overwritten.

A batch that erases notes it, so that there is no erasure without an entry, nor an entry without an erasure.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from worldline.features.erasure import keyspace as keys
from worldline.features.erasure import scrub_keyspace
from worldline.features.erasure.records import ErasedKind, LedgerEntry
from worldline.keys import personal_records as value_keys
from worldline.keys import personal_subjects as subject_keys
from worldline.layers import personal_records
from worldline.model import ids
from worldline.model.personal_records import Erasures
from worldline.store import kv


class Scrubs(msgspec.Struct, frozen=True):
    """How often something was erased, and the last scrub, as they were read."""

    erasures: int
    done: int
    count_raw: bytes | None
    last_raw: bytes | None

    @property
    def is_owed(self) -> bool:
        return self.erasures != self.done


# --- Personal values -------------------------------------------------------------------------------------------------


def erase_subject(batch: kv.Batch, root: ids.Address, was: personal_records.SubjectRecord, *, time_us: int) -> Erasures:
    """Delete all values of a subject. Guard: its record, as it was read. What is written at the same time may survive
    (`store/kv.py`): the caller looks again.
    """
    batch.delete_range(*value_keys.values(root, was.subject))
    note(batch, ErasedKind.SUBJECT, root, subject=was.subject, time_us=time_us)
    return _count(batch, root, was, time_us=time_us)


def erase_values(
    batch: kv.Batch, root: ids.Address, was: personal_records.SubjectRecord, values: Sequence[bytes], *, time_us: int
) -> Erasures:
    """Delete these values of a subject. Guard: its record, as it was read."""
    made = _count(batch, root, was, time_us=time_us)
    note(batch, ErasedKind.VALUES, root, subject=was.subject, values=values, time_us=time_us)
    for value in values:
        batch.delete(value_keys.value_key(root, was.subject, value))
        # Says later that the value was erased: without it, a missing value is damage.
        batch.put(subject_keys.value_key(root, was.subject, value), subject_keys.ERASURES.pack(made))
    return made


def _count(batch: kv.Batch, root: ids.Address, was: personal_records.SubjectRecord, *, time_us: int) -> Erasures:
    assert was.raw is not None, "a subject that has values has a record"
    key = subject_keys.subject_key(root, was.subject)
    batch.expect(key, was.raw)
    # The number makes the bytes new, so a step that read the record before (`personal_records.unchanged`)
    # conflicts.
    made = Erasures(was.erasures.number + 1, time_us)
    batch.put(key, subject_keys.ERASURES.pack(made))
    return made


def drop_lineage(batch: kv.Batch, root: ids.Address) -> None:
    """No world of it is left. Guard: the caller's."""
    batch.delete_range(*value_keys.all_values(root))
    batch.delete_range(*subject_keys.records(root))
    owe_scrub(batch)


# --- The ledger ------------------------------------------------------------------------------------------------------


def note(
    batch: kv.Batch,
    kind: ErasedKind,
    at: ids.Address | ids.UniverseId,
    *,
    time_us: int,
    subject: bytes = b"",
    values: Sequence[bytes] = (),
) -> None:
    """In the batch that erases. Guard: the caller's."""
    universe, world = (at.universe, at.world) if isinstance(at, ids.Address) else (at, b"")
    # The record refuses negative times, and a clock must not make an erasure fail.
    add(batch, LedgerEntry(kind, universe, world, subject, list(values), max(0, time_us)))
    owe_scrub(batch)


def add(batch: kv.Batch, entry: LedgerEntry) -> None:
    """An entry as it is, of this store or another. Guard: the caller's."""
    batch.put(keys.entry_key(entry), keys.ENTRY.pack(entry))


def every_entry(*, count_max: int) -> kv.Range:
    return kv.Range(*keys.entries(), count_max=count_max)


def decode(items: Sequence[tuple[bytes, bytes]]) -> list[LedgerEntry]:
    return [keys.ENTRY.unpack(raw) for _, raw in items]


# --- What is to be overwritten ---------------------------------------------------------------------------------------


def owe_scrub(batch: kv.Batch) -> None:
    """What this batch deletes is to be overwritten where the engine can."""
    # A counter needs no read, so erasures of different worlds do not conflict over it.
    batch.add(scrub_keyspace.COUNT, 1)


def get_scrubs() -> tuple[kv.Get, kv.Get]:
    return kv.Get(scrub_keyspace.COUNT), kv.Get(scrub_keyspace.LAST)


def decode_scrubs(count_raw: bytes | None, last_raw: bytes | None) -> Scrubs:
    last = scrub_keyspace.RECORD.get(last_raw)
    done = 0 if last is None else last.erasures
    return Scrubs(0 if count_raw is None else kv.counter(count_raw), done, count_raw, last_raw)


def owe_again(batch: kv.Batch, scrubs: Scrubs) -> None:
    """More of what was erased before has gone. Guard: the count."""
    assert scrubs.count_raw is not None
    # The count is the guard here, because this batch erases nothing that could be one.
    batch.expect(scrub_keyspace.COUNT, scrubs.count_raw)
    batch.put(scrub_keyspace.COUNT, kv.counter_add(scrubs.count_raw, 1))


def scrubbed(batch: kv.Batch, scrubs: Scrubs, *, erasures: int, time_us: int) -> None:
    """A scrub that began when there were so many erasures is complete. Guard: the record of the last one."""
    if scrubs.last_raw is None:
        batch.absent(scrub_keyspace.LAST)
    else:
        batch.expect(scrub_keyspace.LAST, scrubs.last_raw)
    batch.put(scrub_keyspace.LAST, scrub_keyspace.RECORD.pack(scrub_keyspace.ScrubRecord(erasures, max(0, time_us))))
