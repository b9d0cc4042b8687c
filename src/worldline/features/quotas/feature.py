"""What this feature brings to the core."""

from __future__ import annotations

from worldline.features.quotas import checks, keyspace
from worldline.keys.space import InUniverse
from worldline.runtime.feature import Feature
from worldline.runtime.feature_checks import RecordReaders

QUOTAS = Feature(
    name="quotas",
    readers=(
        RecordReaders(InUniverse.QUOTAS, (keyspace.QUOTAS, keyspace.USAGE)),
        RecordReaders(InUniverse.QUOTA_LOG, (keyspace.QUOTA_CHANGE,)),
    ),
    reasons=(checks.QuotaReasons(),),
)
