"""What this feature brings to the core."""

from __future__ import annotations

from worldline.runtime.feature import Feature

POLICY = Feature(
    name="policy",
    commands={
        "policy": "worldline.features.policy.commands:GROUP",
    },
)
