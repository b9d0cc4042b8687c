"""What this feature brings to the core."""

from __future__ import annotations

from worldline.features.policy.calls import PolicyRenames
from worldline.features.policy.step_rules import PolicyStepRules
from worldline.runtime.feature import Feature

POLICY = Feature(
    name="policy",
    step_rules=PolicyStepRules(),
    rename_watches=(PolicyRenames(),),
    commands={
        "policy": "worldline.features.policy.commands:GROUP",
    },
)
