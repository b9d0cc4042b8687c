"""What other universes may send here, and every change of that.

Per what:      universe
Changes:       the grants when they are allowed or denied; a record of a change never
Keys:          (UNIVERSE, u, GRANTS)           -> Grants
               (UNIVERSE, u, GRANT_LOG, stamp) -> GrantChange
Present:       the grants from the first change on; absent means that no other universe may send here
"""

from __future__ import annotations

from worldline.base import limits
from worldline.codec import tuples
from worldline.keys import space
from worldline.model import grant, ids

_GRANTS = space.part(space.InUniverse.GRANTS)
_LOG = space.part(space.InUniverse.GRANT_LOG)
_STAMP = b"\x33"  # the tuple layer's type code of a stamp, which the engine completes

GRANTS = space.Value(space.ValueKind.GRANTS, grant.Grants)
CHANGE = space.Value(space.ValueKind.GRANT_CHANGE, grant.GrantChange)


def grants_key(of: ids.UniverseId) -> bytes:
    return space.universe(of) + _GRANTS


def log_prefix(of: ids.UniverseId) -> bytes:
    """What an append takes; the engine's stamp completes the key."""
    return space.universe(of) + _LOG + _STAMP


def log_key(of: ids.UniverseId, stamp: bytes) -> bytes:
    assert len(stamp) == limits.STAMP_BYTES
    return log_prefix(of) + stamp


def log(of: ids.UniverseId) -> tuple[bytes, bytes]:
    return tuples.prefix_range(log_prefix(of))
