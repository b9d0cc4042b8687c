"""Personal values: writing them apart, reading them, and what is known of those that were erased.

A lineage, a world with all its forks, has its values in one place, under the world that it began with: a fork has what
it inherited, and what is erased is erased for all. Erasing deletes salt and value; a record says that it was done. The
batches that erase are in `features/erasure/batches.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from worldline.codec import sealed_token as tokens
from worldline.codec.sealed_token import Token
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
            # From now on there is a record which an erasure changes: batches that erase rely on that.
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


def subjects_range(root: ids.Address) -> kv.Range:
    """The records of a lineage's subjects."""
    return kv.Range(*personal_subjects.subjects(root))


def counts_erasure(raw: bytes) -> bool:
    """Whether a record says that something was erased."""
    return personal_subjects.ERASURES.unpack(raw).number > 0


def subject_range(root: ids.Address, subject: bytes, *, count_max: int) -> kv.Range:
    return kv.Range(*personal_records.values(root, subject), count_max=count_max)


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


def lineage_range(root: ids.Address, *, count_max: int) -> kv.Range:
    """Values of a lineage."""
    return kv.Range(*personal_records.all_values(root), count_max=count_max)
