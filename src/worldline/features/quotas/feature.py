"""What this feature brings to the core."""

from __future__ import annotations

from worldline.features.quotas import quota_metrics
from worldline.features.quotas.admission import QuotaAdmission
from worldline.features.quotas.job import usage_counter
from worldline.runtime.feature import Feature

QUOTAS = Feature(
    name="quotas",
    admissions=(QuotaAdmission(),),
    janitor_roles=(usage_counter,),
    measures=quota_metrics.TABLE,
)
