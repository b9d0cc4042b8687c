"""What this feature brings to the core."""

from __future__ import annotations

from worldline.runtime.feature import Feature

DIFF = Feature(
    name="diff",
    commands={
        "diff": "worldline.features.diff.commands:diff",
    },
)
