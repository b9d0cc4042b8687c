"""What a universe may have, and what it was last counted to have.

Per what:      universe
Changes:       the quota with every change of it, and with every world or fork made while their number is bounded; a
               change of it never; the usage with every count
Keys:          (UNIVERSE, u, QUOTAS, 0)        -> Quotas; absent means that nothing is bounded
               (UNIVERSE, u, QUOTAS, 1)        -> Usage; absent means that it was not counted yet
               (UNIVERSE, u, QUOTA_LOG, stamp) -> QuotaChange
Present:       the quota from its first change on; a change for ever; the usage from the first count on
"""

from __future__ import annotations

from worldline.base import limits
from worldline.codec import tuples
from worldline.features.quotas import records
from worldline.keys import space
from worldline.model import ids

_QUOTAS = space.part(space.InUniverse.QUOTAS) + tuples.pack((0,))
_USAGE = space.part(space.InUniverse.QUOTAS) + tuples.pack((1,))
_LOG = space.part(space.InUniverse.QUOTA_LOG)
_STAMP = b"\x33"  # the tuple layer's type code of a stamp, which the engine completes

QUOTAS = space.ValueCodec(space.ValueKind.QUOTAS, records.Quotas)
QUOTA_CHANGE = space.ValueCodec(space.ValueKind.QUOTA_CHANGE, records.QuotaChangeRecord)
USAGE = space.ValueCodec(space.ValueKind.USAGE, records.Usage)


def quotas_key(of: ids.UniverseId) -> bytes:
    return space.universe(of) + _QUOTAS


def usage_key(of: ids.UniverseId) -> bytes:
    return space.universe(of) + _USAGE


def log_prefix(of: ids.UniverseId) -> bytes:
    """What an append takes; the engine's stamp completes the key."""
    return space.universe(of) + _LOG + _STAMP


def log_key(of: ids.UniverseId, stamp: bytes) -> bytes:
    assert len(stamp) == limits.STAMP_BYTES
    return log_prefix(of) + stamp


def log(of: ids.UniverseId) -> tuple[bytes, bytes]:
    return tuples.prefix_range(log_prefix(of))
