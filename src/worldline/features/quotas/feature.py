"""What this feature brings to the core."""

from __future__ import annotations

from worldline.features.quotas.job import usage_counter
from worldline.runtime.feature import Feature

QUOTAS = Feature(name="quotas", janitor_roles=(usage_counter,))
