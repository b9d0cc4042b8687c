"""What this feature brings to the core."""

from __future__ import annotations

from worldline.runtime.feature import Feature

RELAY = Feature(
    name="relay",
    commands={
        "relay": "worldline.features.relay.commands:relay",
    },
)
