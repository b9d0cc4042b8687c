"""Snapshots and the baseline.

Per what:      world
Changes:       a snapshot's record never; the baseline only to a later step
Keys:          (UNIVERSE, u, WORLD, w, SNAPSHOT, step) -> Snapshot
               (UNIVERSE, u, WORLD, w, BASELINE)       -> Snapshot
Present:       the baseline from creation; a snapshot until retention drops it
"""

from __future__ import annotations

from worldline.base import errors
from worldline.codec import tuples
from worldline.keys import space
from worldline.model import ids
from worldline.model import snapshots as snapshot

_SNAPSHOT = space.part(space.InWorld.SNAPSHOT)
_BASELINE = space.part(space.InWorld.BASELINE)

SNAPSHOT = space.ValueCodec(space.ValueKind.SNAPSHOT, snapshot.StateSnapshot)
BASELINE = space.ValueCodec(space.ValueKind.BASELINE, snapshot.StateSnapshot)


def snapshot_key(at: ids.Address, step: int) -> bytes:
    assert step >= 0
    return space.world(at) + _SNAPSHOT + tuples.pack((step,))


def snapshots(at: ids.Address, *, up_to: int | None = None) -> tuple[bytes, bytes]:
    """Snapshot records, or those at or below a step."""
    prefix = space.world(at) + _SNAPSHOT
    begin, end = tuples.prefix_range(prefix)
    # The end of a range is outside of it, and the snapshot of this very step counts.
    return begin, end if up_to is None else prefix + tuples.pack((up_to + 1,))


def snapshot_step(at: ids.Address, key: bytes) -> int:
    match space.inside(space.world(at) + _SNAPSHOT, key, "a snapshot key of this world"):
        case (int(step),) if step >= 0:
            return step
        case _:
            raise errors.DecodeError("not a snapshot key")


def baseline_key(at: ids.Address) -> bytes:
    return space.world(at) + _BASELINE
