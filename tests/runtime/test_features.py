"""What features bring to the core."""

from __future__ import annotations

import pytest

from worldline.features.domains.feature import DOMAINS
from worldline.features.forks.feature import FORKS
from worldline.host.feature_list import FEATURES, PARTS
from worldline.runtime.feature import Feature, parts_of


def test_steps_are_given_the_parts_that_features_bring() -> None:
    parts = parts_of(FEATURES)
    assert (parts.branch, parts.domains) == (FORKS.branch_part, DOMAINS.domains_part)
    assert (PARTS.branch, PARTS.domains, [*PARTS.commands]) == (parts.branch, parts.domains, [*parts.commands])


@pytest.mark.parametrize(
    "features", [[FORKS], [DOMAINS], [FORKS, DOMAINS, Feature(name="other", branch_part=FORKS.branch_part)]]
)
def test_each_part_is_brought_once(features: list[Feature]) -> None:
    with pytest.raises(AssertionError, match="each part"):
        parts_of(features)
