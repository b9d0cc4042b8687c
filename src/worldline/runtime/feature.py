"""What a feature brings to the core: one record, with a field for each seam.

`host/feature_list.py` has all features, in a fixed order; nothing registers by being imported. An opened store carries
the list (`store_opening.Store.features`), so that whatever is reached from a store asks the same features, in that
order. A field is empty where a feature has nothing to bring.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from worldline.kernel.parts import BranchPart, DomainsPart, StepParts


class Feature(msgspec.Struct, frozen=True, kw_only=True):
    """What one folder of `features/` brings. All but the name may be left out."""

    name: str
    branch_part: BranchPart | None = None  # what worlds do in a step that are forks, or go back; one feature has it
    domains_part: DomainsPart | None = None  # what flow domains do in a step; one feature has it


def parts_of(features: Iterable[Feature]) -> StepParts:
    """Put together what steps are given."""
    every = list(features)
    branch = [each.branch_part for each in every if each.branch_part is not None]
    domains = [each.domains_part for each in every if each.domains_part is not None]
    assert len(branch) == len(domains) == 1, "any stored world may need each part, and of two one would be left out"
    return StepParts.of(branch[0], domains[0])
