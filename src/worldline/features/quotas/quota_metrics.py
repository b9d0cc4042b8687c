"""What metrics say of quotas: how much a universe with a quota has, what it may have, and inputs that were refused."""

from __future__ import annotations

import math

from worldline.base import errors
from worldline.features.quotas import records
from worldline.runtime.facts import LevelsMeasured
from worldline.runtime.metric_table import Level, MetricTable, gauge

USED, LIMIT = "worldline_quota_used", "worldline_quota_limit"
REFUSED = "quota"  # why an input was refused

TABLE = MetricTable(
    {
        USED: gauge("What a universe with a quota has, as it was last counted.", "universe", "quota"),
        LIMIT: gauge("What it may have.", "universe", "quota"),
    },
    {
        (USED, "quota"): tuple(errors.QUOTA_NAMES),
        (LIMIT, "quota"): tuple(errors.QUOTA_NAMES),
        ("worldline_inputs_refused_total", "why"): (REFUSED,),
    },
)


def usage_counted(universe: str, counted: records.Usage, quota: records.QuotaRecord) -> LevelsMeasured:
    """What a universe has was counted, because its quota bounds some of it."""
    levels: list[Level] = []
    for name in errors.QUOTA_NAMES:
        used: int | None = getattr(counted, name)
        if used is not None:  # bytes are counted only where they are bounded
            levels.append(Level(USED, used, (universe, name)))
        limit: int | None = getattr(quota, name)
        # A graph needs a number, also where there is no limit.
        levels.append(Level(LIMIT, math.inf if limit is None else limit, (universe, name)))
    return LevelsMeasured(levels)
