"""Worlds that are being imported: they have keys, and are not there yet.

Per what:      universe and world
Changes:       with every batch that is written of it
Key:           (UNIVERSE, u, IMPORT, w)
Value:         Copying (`features/copies/keyspace.py`), which imports alone read
Present:       while a file is being imported as this world, and after a process that did so was killed, until the
               import is swept

What looks for worlds that are gone for good asks whether the key is there.
"""

from __future__ import annotations

from worldline.base import errors
from worldline.codec import tuples
from worldline.keys import space
from worldline.model import ids

_IMPORT = space.part(space.InUniverse.IMPORT)


def import_key(at: ids.Address) -> bytes:
    return space.universe(at.universe) + _IMPORT + tuples.pack_uuid(at.world)


def imports(universe: ids.UniverseId) -> tuple[bytes, bytes]:
    return tuples.prefix_range(space.universe(universe) + _IMPORT)


def import_world(universe: ids.UniverseId, key: bytes) -> ids.Address:
    """The world that an import is for."""
    match space.inside(space.universe(universe) + _IMPORT, key, "an import of this universe"):
        case (tuples.Uuid(world),):
            return ids.Address(universe, ids.WorldId(world))
        case _:
            raise errors.DecodeError("not an import")
