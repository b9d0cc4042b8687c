"""What this feature brings to the core."""

from __future__ import annotations

from worldline.features.quotas import quota_metrics
from worldline.features.quotas.admission import QuotaAdmission
from worldline.runtime.feature import Feature

QUOTAS = Feature(name="quotas", admissions=(QuotaAdmission(),), measures=quota_metrics.TABLE)
