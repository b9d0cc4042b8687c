"""What a feature brings to the core: one record, with a field for each seam.

`host/feature_list.py` has all features, in a fixed order; nothing registers by being imported. An opened store carries
the list (`store_opening.Store.features`), so that whatever is reached from a store asks the same features, in that
order. A field is empty where a feature has nothing to bring.
"""

from __future__ import annotations

import msgspec

from worldline.runtime.metric_table import MetricTable
from worldline.runtime.universe_admission import Admission
from worldline.runtime.world_change_interface import RenameWatch, StatusGuard


class Feature(msgspec.Struct, frozen=True, kw_only=True):
    """What one folder of `features/` brings. All but the name may be left out."""

    name: str
    admissions: tuple[Admission, ...] = ()  # whether a universe takes more from outside
    status_guards: tuple[StatusGuard, ...] = ()  # what goes with another status of a world, or is against it
    rename_watches: tuple[RenameWatch, ...] = ()  # what follows when a world has another name
    measures: MetricTable = MetricTable()  # metrics of its own; it tells them as `facts.LevelsMeasured`
