"""What this feature brings to the core."""

from __future__ import annotations

from worldline.features.domains import checks
from worldline.features.domains.pure import part
from worldline.runtime.feature import Feature

DOMAINS = Feature(
    name="domains",
    domains_part=part,
    reasons=(checks.DomainReasons(),),
    commands={
        "trace": "worldline.features.domains.trace_commands:trace",
        "act": "worldline.features.domains.commands:act",
        "explain": "worldline.features.domains.commands:explain",
        "abandon": "worldline.features.domains.cell_repair_commands:abandon",
        "patch": "worldline.features.domains.cell_repair_commands:patch",
        "domain": "worldline.features.domains.domain_commands:GROUP",
    },
)
