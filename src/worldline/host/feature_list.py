"""All features, in the order in which the core asks them."""

from __future__ import annotations

from worldline.seams.feature import Feature

FEATURES: tuple[Feature, ...] = ()
