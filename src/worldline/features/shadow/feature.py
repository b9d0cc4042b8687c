"""What this feature brings to the core."""

from __future__ import annotations

from worldline.runtime.feature import Feature

SHADOW = Feature(
    name="shadow",
    commands={
        "upgrade": "worldline.features.shadow.commands:upgrade",
    },
)
