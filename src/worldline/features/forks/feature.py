"""What this feature brings to the core."""

from __future__ import annotations

from worldline.runtime.feature import Feature

FORKS = Feature(
    name="forks",
    commands={
        "fork": "worldline.features.forks.commands:fork",
        "tree": "worldline.features.forks.commands:tree",
        "revert": "worldline.features.forks.commands:revert",
    },
)
