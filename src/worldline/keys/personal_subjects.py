"""Whose personal values a lineage keeps, and how often some of them were erased. Names are stored nowhere.

Per what:      subject, by the world that a lineage began with; and each value that was erased alone
Changes:       a subject's with every erasure of its values; a value's never
Keys:          (UNIVERSE, u, SUBJECT, root, 0, subject)        -> Erasures
               (UNIVERSE, u, SUBJECT, root, 1, subject, value) -> Erasures
Present:       a subject's from its first value on, a value's from its erasure on, while a world of the lineage is left

Whatever reads a personal value and may write what it made of it expects the subject's record as it was then: so an
erasure is never overtaken by a copy.
"""

from __future__ import annotations

from worldline.codec import tuples
from worldline.keys import space
from worldline.model import ids, personal_records

_SUBJECT = space.part(space.InUniverse.SUBJECT)

ERASURES = space.ValueCodec(space.ValueKind.SUBJECT, personal_records.Erasures)


def subject_key(root: ids.Address, subject: bytes) -> bytes:
    return _root(root, 0) + tuples.pack_uuid(ids.check_id(subject, "a subject"))


def value_key(root: ids.Address, subject: bytes, value: bytes) -> bytes:
    return _root(root, 1) + tuples.pack_uuid(ids.check_id(subject, "a subject")) + tuples.pack_uuid(value)


def subjects(root: ids.Address) -> tuple[bytes, bytes]:
    """All subjects of a lineage."""
    return tuples.prefix_range(_root(root, 0))


def records(root: ids.Address) -> tuple[bytes, bytes]:
    """All that is known of a lineage's subjects: their records, and those of values that were erased alone."""
    return tuples.prefix_range(_of(root))


def _of(root: ids.Address) -> bytes:
    return space.universe(root.universe) + _SUBJECT + tuples.pack_uuid(ids.check_id(root.world, "a world id"))


def _root(root: ids.Address, part: int) -> bytes:
    return _of(root) + tuples.pack((part,))
