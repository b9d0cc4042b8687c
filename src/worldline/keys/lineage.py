"""Where forks come from, and what they need of the worlds that they come from.

Per what:      world
Changes:       a lineage never; a pin never; the count of pins with every pin that comes or goes
Keys:          (UNIVERSE, u, WORLD, w, LINEAGE)         -> Lineage
               (UNIVERSE, u, WORLD, w, RETAIN, 0)       -> how often pins came or went, a counter
               (UNIVERSE, u, WORLD, w, RETAIN, 1, fork) -> Pin
Present:       the lineage of a fork, from its creation; a pin until the fork has saved a state of its own, or is
               deleted; the counter from the first pin on, and for ever
"""

from __future__ import annotations

from worldline.base import errors
from worldline.codec import tuples
from worldline.keys import space
from worldline.model import ids
from worldline.model import world_records as worlds

_LINEAGE = space.part(space.InWorld.LINEAGE)
_COUNT = space.part(space.InWorld.RETAIN) + tuples.pack((0,))
_PIN = space.part(space.InWorld.RETAIN) + tuples.pack((1,))

LINEAGE = space.ValueCodec(space.ValueKind.LINEAGE, worlds.Lineage)
PIN = space.ValueCodec(space.ValueKind.PIN, worlds.Pin)


def lineage_key(at: ids.Address) -> bytes:
    return space.world(at) + _LINEAGE


def pin_count_key(at: ids.Address) -> bytes:
    """What retention expects: it changes with every pin."""
    return space.world(at) + _COUNT


def pin_key(at: ids.Address, fork: ids.WorldId) -> bytes:
    return space.world(at) + _PIN + tuples.pack_uuid(ids.check_id(fork, "a world id"))


def pins(at: ids.Address) -> tuple[bytes, bytes]:
    return tuples.prefix_range(space.world(at) + _PIN)


def pin_fork(at: ids.Address, key: bytes) -> ids.WorldId:
    """The fork that a pin is for."""
    match space.inside(space.world(at) + _PIN, key, "a pin of this world"):
        case (tuples.Uuid(fork),):
            return ids.WorldId(fork)
        case _:
            raise errors.DecodeError("not a pin")
