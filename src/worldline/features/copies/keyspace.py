"""Copies that are being made.

Per what:      store (a restore into it, a backup of it); universe and world (an import)
Changes:       with every batch that is written of it; the time of a backup is renewed
Keys:          (STORE, RESTORING)        -> Copying: a backup is being restored into this store
               (STORE, BACKUP)           -> Copying: a backup of this store is being made
               (UNIVERSE, u, IMPORT, w)  -> Copying: a file is being imported as this world, which is not there yet
Present:       while it is made, and after a process that made it was killed, until it is made again or swept
"""

from __future__ import annotations

from worldline.base import errors
from worldline.codec import tuples
from worldline.features.copies import records
from worldline.keys import space
from worldline.model import ids

_IMPORT = space.part(space.InUniverse.IMPORT)

COPYING = space.ValueCodec(space.ValueKind.COPYING, records.Copying)


def restoring_key() -> bytes:
    return tuples.pack((int(space.Root.STORE), int(space.InStore.RESTORING)))


def backup_key() -> bytes:
    return tuples.pack((int(space.Root.STORE), int(space.InStore.BACKUP)))


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
