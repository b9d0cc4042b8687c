"""A feature, as the core gets it: one record with a field for each seam.

The protocol of a seam stands where the core uses it, below features. `host/feature_list.py` has all features, in a
fixed order; nothing registers by being imported.
"""

from __future__ import annotations

import msgspec


class Feature(msgspec.Struct, frozen=True, kw_only=True):
    """What one folder of `features/` brings. All but the name may be left out."""

    name: str
