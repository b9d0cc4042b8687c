"""Tracebacks of what failed in a world's steps, beside its journal.

Per what:      world
Changes:       overwritten by another step whose number has the same rest
Keys:          (UNIVERSE, u, WORLD, w, TRACE, step modulo TRACE_SLOTS) -> Kept
Present:       for steps in which user code failed, until another such step takes the place; until the world is deleted

So there are never more than `TRACE_SLOTS`, without a count of them and without a read before a write; those of the last
`TRACE_SLOTS` steps are all there. No digest covers them, and nothing is restored from them.
"""

from __future__ import annotations

from worldline.base import limits
from worldline.codec import tuples
from worldline.keys import space
from worldline.model import ids
from worldline.model import traces as trace

_TRACE = space.part(space.InWorld.TRACE)

KEPT = space.ValueCodec(space.ValueKind.TRACE, trace.StepTraces)


def trace_key(at: ids.Address, step: int) -> bytes:
    assert step > 0
    return space.world(at) + _TRACE + tuples.pack((step % limits.TRACE_SLOTS,))


def traces(at: ids.Address) -> tuple[bytes, bytes]:
    return tuples.prefix_range(space.world(at) + _TRACE)
