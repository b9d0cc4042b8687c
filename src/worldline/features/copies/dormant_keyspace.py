"""Worlds that are copies and not used yet.

Per what:      world
Changes:       never
Key:           (UNIVERSE, u, WORLD, w, HELD)
Value:         Held(status, source, since)
Present:       from the restore or import of a world until it is resumed or deleted
"""

from __future__ import annotations

from worldline.features.copies import records
from worldline.keys import space
from worldline.model import ids

_HELD = space.part(space.InWorld.HELD)

HELD = space.ValueCodec(space.ValueKind.HELD_COPY, records.DormantCopy)


def held_key(at: ids.Address) -> bytes:
    return space.world(at) + _HELD
