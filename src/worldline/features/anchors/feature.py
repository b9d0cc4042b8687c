"""What this feature brings to the core."""

from __future__ import annotations

from worldline.runtime.feature import Feature

ANCHORS = Feature(
    name="anchors",
    commands={
        "anchor": "worldline.features.anchors.commands:anchor",
    },
)
