"""Personal values, kept apart from the journals that refer to them.

Per what:      value; by the world that a lineage began with, so that forks share what they inherited
Changes:       never
Keys:          (UNIVERSE, u, SEALED, root, subject, value) -> Kept
Present:       from before the first commit that refers to it, until it is erased, or no world of the lineage is left

A reference to one is a token (`codec/sealed_token.py`), which names subject and value, and not the lineage.
"""

from __future__ import annotations

from worldline.base import errors
from worldline.codec import tuples
from worldline.keys import space
from worldline.model import ids, personal_records

_SEALED = space.part(space.InUniverse.SEALED)

KEPT = space.ValueCodec(space.ValueKind.SEALED, personal_records.PersonalRecord)


def value_key(root: ids.Address, subject: bytes, value: bytes) -> bytes:
    return _subject(root, subject) + tuples.pack_uuid(value)


def values(root: ids.Address, subject: bytes) -> tuple[bytes, bytes]:
    """All values of one subject."""
    return tuples.prefix_range(_subject(root, subject))


def all_values(root: ids.Address) -> tuple[bytes, bytes]:
    """All values of a lineage."""
    return tuples.prefix_range(_root(root))


def lineages(universe: ids.UniverseId) -> tuple[bytes, bytes]:
    """All values of a universe."""
    return tuples.prefix_range(space.universe(universe) + _SEALED)


def parse(universe: ids.UniverseId, key: bytes) -> tuple[ids.Address, bytes, bytes]:
    """The lineage, the subject and the value that a key is of."""
    match space.inside(space.universe(universe) + _SEALED, key, "a personal value of this universe"):
        case (tuples.Uuid(root), tuples.Uuid(subject), tuples.Uuid(value)):
            return ids.Address(universe, ids.WorldId(root)), subject, value
        case _:
            raise errors.DecodeError("not a personal value")


def _root(root: ids.Address) -> bytes:
    return space.universe(root.universe) + _SEALED + tuples.pack_uuid(ids.check_id(root.world, "a world id"))


def _subject(root: ids.Address, subject: bytes) -> bytes:
    return _root(root) + tuples.pack_uuid(ids.check_id(subject, "a subject"))
