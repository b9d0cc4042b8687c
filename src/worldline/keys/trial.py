"""Trials: what a world's holder is doing, after a holder before it died.

Per what:      world
Changes:       at an acquire from a holder that did not release; after its restore; before and after the code
               of each step on trial; when a holder that was counted as dead lives
Key:           (UNIVERSE, u, WORLD, w, TRIAL) -> Trial
Present:       from such an acquire until the next step's commit or the release; while a world is quarantined
"""

from __future__ import annotations

from worldline.keys import space
from worldline.model import ids, leases

_TRIAL = space.part(space.InWorld.TRIAL)

TRIAL = space.ValueCodec(space.ValueKind.TRIAL, leases.CrashTrial)


def trial_key(at: ids.Address) -> bytes:
    return space.world(at) + _TRIAL
