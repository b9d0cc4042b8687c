"""Personal values, kept apart from the journals that refer to them.

Per what:      value; by the world that a lineage began with, so that forks share what they inherited
Changes:       never
Keys:          (UNIVERSE, u, SEALED, root, subject, value) -> Kept
Present:       from before the first commit that refers to it, until it is erased

A reference to one is a token (`codec/sealed.py`), which names subject and value, and not the lineage.
"""

from __future__ import annotations

from worldline.codec import tuples
from worldline.keys import space
from worldline.model import ids
from worldline.model.upkeep import sealed

_SEALED = space.part(space.InUniverse.SEALED)

KEPT = space.Value(space.ValueKind.SEALED, sealed.Kept)


def value_key(root: ids.Address, subject: bytes, value: bytes) -> bytes:
    return _subject(root, subject) + tuples.pack_uuid(value)


def values(root: ids.Address, subject: bytes) -> tuple[bytes, bytes]:
    """All values of one subject."""
    return tuples.prefix_range(_subject(root, subject))


def _root(root: ids.Address) -> bytes:
    return space.universe(root.universe) + _SEALED + tuples.pack_uuid(ids.check_id(root.world, "a world id"))


def _subject(root: ids.Address, subject: bytes) -> bytes:
    return _root(root) + tuples.pack_uuid(ids.check_id(subject, "a subject"))
