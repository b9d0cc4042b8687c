"""What this feature brings to the core."""

from __future__ import annotations

from worldline.features.policy.calls import PolicyRenames
from worldline.runtime.feature import Feature

POLICY = Feature(name="policy", rename_watches=(PolicyRenames(),))
