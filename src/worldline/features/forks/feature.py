"""What this feature brings to the core."""

from __future__ import annotations

from worldline.features.forks.pure import part
from worldline.runtime.feature import Feature

FORKS = Feature(
    name="forks",
    branch_part=part,
    commands={
        "fork": "worldline.features.forks.commands:fork",
        "tree": "worldline.features.forks.commands:tree",
        "revert": "worldline.features.forks.commands:revert",
    },
)
