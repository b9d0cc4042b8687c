"""What this feature brings to the core."""

from __future__ import annotations

from worldline.features.quotas import checks, keyspace, quota_metrics
from worldline.features.quotas.admission import QuotaAdmission
from worldline.features.quotas.job import usage_counter
from worldline.keys.space import InUniverse
from worldline.runtime.feature import Feature
from worldline.runtime.feature_checks import RecordReaders

QUOTAS = Feature(
    name="quotas",
    admissions=(QuotaAdmission(),),
    janitor_roles=(usage_counter,),
    measures=quota_metrics.TABLE,
    readers=(
        RecordReaders(InUniverse.QUOTAS, (keyspace.QUOTAS, keyspace.USAGE)),
        RecordReaders(InUniverse.QUOTA_LOG, (keyspace.QUOTA_CHANGE,)),
    ),
    reasons=(checks.QuotaReasons(),),
    commands={
        "universe quota": "worldline.features.quotas.commands:quota",
    },
)
