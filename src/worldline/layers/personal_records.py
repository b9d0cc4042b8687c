"""Personal values: writing them apart, reading them, erasing them.

A lineage, a world with all its forks, has its values in one place, under the world that it began with: a fork has what
it inherited, and what is erased is erased for all. Erasing deletes salt and value; a record says that it was done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from worldline.codec import sealed_token as tokens
from worldline.codec.sealed_token import Token
from worldline.features.erasure import batches as erasure_batches
from worldline.features.erasure.records import ErasedKind
from worldline.keys import personal_records, personal_subjects
from worldline.layers.history.history_line import HistoryLine
from worldline.model import ids
from worldline.model.personal_records import NONE, Erasures, New, PersonalRecord
from worldline.store import kv


class SubjectRecord(msgspec.Struct, frozen=True):
    """What was read of a subject. `raw`: its record, as it is stored; None: it has none yet."""

    subject: bytes
    raw: bytes | None

    @property
    def erasures(self) -> Erasures:
        return NONE if self.raw is None else personal_subjects.ERASURES.unpack(self.raw)


def root_of(line: HistoryLine) -> ids.Address:
    """The world that a lineage began with."""
    return line.owners()[0].at


def keep(batch: kv.Batch, root: ids.Address, new: Iterable[New]) -> None:
    """Write values: before what refers to them, or with it. Guard: none of them is there."""
    for each in new:
        key = personal_records.value_key(root, each.subject, each.value)
        batch.absent(key)
        batch.put(key, personal_records.KEPT.pack(each.kept))


def get(root: ids.Address, subject: bytes, value: bytes) -> kv.Get:
    return kv.Get(personal_records.value_key(root, subject, value))


def decode(raw: bytes | None) -> PersonalRecord | None:
    return personal_records.KEPT.get(raw)


def opened(token: Token, raw: bytes | None) -> bytes | None:
    """The value that a token stands for, checked; None if it is not there."""
    kept = decode(raw)
    if kept is None:
        return None
    tokens.check(token, salt=kept.salt, data=kept.data)
    return kept.data


def get_subject(root: ids.Address, subject: bytes) -> kv.Get:
    """The record of a subject: what `unchanged` expects."""
    return kv.Get(personal_subjects.subject_key(root, subject))


def unchanged(batch: kv.Batch, root: ids.Address, subjects: Iterable[SubjectRecord]) -> None:
    """Expect that nothing of these subjects was erased since they were first read. One without a record gets it now."""
    for each in subjects:
        key = personal_subjects.subject_key(root, each.subject)
        if key in batch.expects:
            continue
        if each.raw is None:
            batch.absent(key)
            # From now on there is a record which an erasure changes: `_count` relies on that.
            batch.put(key, personal_subjects.ERASURES.pack(NONE))
        else:
            batch.expect(key, each.raw)


def get_erasures(root: ids.Address, token: Token) -> Sequence[kv.Get]:
    """What says that a value which is missing was erased: the records of its subject and of itself."""
    return get_subject(root, token.subject), kv.Get(personal_subjects.value_key(root, token.subject, token.value))


def erased_at(records: Iterable[bytes | None]) -> int:
    """When a missing value was erased, by `get_erasures`; 0 if it was not."""
    found = [personal_subjects.ERASURES.unpack(raw) for raw in records if raw is not None]
    return max((each.time_us for each in found if each.number), default=0)


def subjects_range(root: ids.Address, *, after: bytes = b"") -> kv.Range:
    """The records of a lineage's subjects."""
    begin, end = personal_subjects.subjects(root)
    return kv.Range(after + b"\x00" if after else begin, end)


def counts_erasure(raw: bytes) -> bool:
    """Whether a record says that something was erased."""
    return personal_subjects.ERASURES.unpack(raw).number > 0


def subject_range(root: ids.Address, subject: bytes, *, count_max: int, after: bytes = b"") -> kv.Range:
    begin, end = personal_records.values(root, subject)
    return kv.Range(after + b"\x00" if after else begin, end, count_max=count_max)


def erase_subject(batch: kv.Batch, root: ids.Address, was: SubjectRecord, *, time_us: int) -> Erasures:
    """Delete all values of a subject. Guard: its record, as it was read. What is written at the same time may survive
    (`store/kv.py`): the caller looks again.
    """
    batch.delete_range(*personal_records.values(root, was.subject))
    erasure_batches.note(batch, ErasedKind.SUBJECT, root, subject=was.subject, time_us=time_us)
    return _count(batch, root, was, time_us=time_us)


def erase_values(
    batch: kv.Batch, root: ids.Address, was: SubjectRecord, values: Sequence[bytes], *, time_us: int
) -> Erasures:
    """Delete these values of a subject. Guard: its record, as it was read."""
    made = _count(batch, root, was, time_us=time_us)
    erasure_batches.note(batch, ErasedKind.VALUES, root, subject=was.subject, values=values, time_us=time_us)
    for value in values:
        batch.delete(personal_records.value_key(root, was.subject, value))
        # Says later that the value was erased: without it, a missing value is damage.
        batch.put(personal_subjects.value_key(root, was.subject, value), personal_subjects.ERASURES.pack(made))
    return made


def _count(batch: kv.Batch, root: ids.Address, was: SubjectRecord, *, time_us: int) -> Erasures:
    assert was.raw is not None, "a subject that has values has a record"
    key = personal_subjects.subject_key(root, was.subject)
    batch.expect(key, was.raw)
    # The number makes the bytes new, so a step that read the record before (`unchanged`) conflicts.
    made = Erasures(was.erasures.number + 1, time_us)
    batch.put(key, personal_subjects.ERASURES.pack(made))
    return made


def drop(batch: kv.Batch, root: ids.Address, new: Iterable[New]) -> None:
    """Remove values that nothing refers to. Guards: each is there, under its own salt."""
    for each in new:
        key = personal_records.value_key(root, each.subject, each.value)
        batch.expect(key, personal_records.KEPT.pack(each.kept))
        batch.delete(key)


# --- A whole lineage ------------------------------------------------------------------------------------------------


def next_lineage(universe: ids.UniverseId, *, after: ids.Address | None) -> kv.Range:
    """The first value of the next lineage behind this one. What that has is not walked."""
    begin, end = personal_records.lineages(universe)
    return kv.Range(begin if after is None else personal_records.all_values(after)[1], end, count_max=1)


def decode_next(universe: ids.UniverseId, page: kv.Page) -> ids.Address | None:
    """The lineage of such a page; None if there is no other."""
    return personal_records.parse(universe, page.items[0][0])[0] if page.items else None


def drop_lineage(batch: kv.Batch, root: ids.Address) -> None:
    """No world of it is left. Guard: the caller's."""
    batch.delete_range(*personal_records.all_values(root))
    batch.delete_range(*personal_subjects.records(root))
    erasure_batches.owe_scrub(batch)


def lineage_range(root: ids.Address, *, count_max: int) -> kv.Range:
    """Values of a lineage."""
    return kv.Range(*personal_records.all_values(root), count_max=count_max)
