"""What this feature brings to the core."""

from __future__ import annotations

from worldline.features.domains.pure import part
from worldline.runtime.feature import Feature

DOMAINS = Feature(name="domains", domains_part=part)
