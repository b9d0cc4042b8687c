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

from worldline.base import errors
from worldline.codec import tuples
from worldline.keys import space
from worldline.model import ids
from worldline.model.upkeep import sealed

_SUBJECT = space.part(space.InUniverse.SUBJECT)

ERASURES = space.Value(space.ValueKind.SUBJECT, sealed.Erasures)


def subject_key(root: ids.Address, subject: bytes) -> bytes:
    return _root(root, 0) + tuples.pack_uuid(ids.check_id(subject, "a subject"))


def value_key(root: ids.Address, subject: bytes, value: bytes) -> bytes:
    return _root(root, 1) + tuples.pack_uuid(ids.check_id(subject, "a subject")) + tuples.pack_uuid(value)


def subjects(root: ids.Address) -> tuple[bytes, bytes]:
    """All subjects of a lineage."""
    return tuples.prefix_range(_root(root, 0))


def erased(root: ids.Address) -> tuple[bytes, bytes]:
    """All values of a lineage that were erased alone."""
    return tuples.prefix_range(_root(root, 1))


def subject_of(root: ids.Address, key: bytes) -> bytes:
    """The subject that a record is of."""
    match space.inside(_root(root, 0), key, "a subject of this lineage"):
        case (tuples.Uuid(subject),):
            return subject
        case _:
            raise errors.DecodeError("not a subject")


def erased_value(root: ids.Address, key: bytes) -> tuple[bytes, bytes]:
    """The subject, and its value that was erased alone."""
    match space.inside(_root(root, 1), key, "an erased value of this lineage"):
        case (tuples.Uuid(subject), tuples.Uuid(value)):
            return subject, value
        case _:
            raise errors.DecodeError("not an erased value")


def _root(root: ids.Address, part: int) -> bytes:
    world = tuples.pack_uuid(ids.check_id(root.world, "a world id"))
    return space.universe(root.universe) + _SUBJECT + world + tuples.pack((part,))
