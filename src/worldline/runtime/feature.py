"""What a feature brings to the core: one record, with a field for each seam.

`host/feature_list.py` has all features, in a fixed order; nothing registers by being imported. An opened store carries
the list (`store_opening.Store.features`), so that whatever is reached from a store asks the same features, in that
order. A field is empty where a feature has nothing to bring.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from worldline.runtime.feature_checks import HistoryCheck, RecordReaders, UniverseCheck
from worldline.runtime.feature_reasons import FeatureReasons


class Feature(msgspec.Struct, frozen=True, kw_only=True):
    """What one folder of `features/` brings. All but the name may be left out."""

    name: str
    checks: tuple[UniverseCheck, ...] = ()  # of `doctor`
    readers: tuple[RecordReaders, ...] = ()  # of the records that `doctor` reads
    history_checks: tuple[HistoryCheck, ...] = ()  # of `verify`
    reasons: tuple[FeatureReasons, ...] = ()  # of `why`
    commands: Mapping[str, str] = {}  # words to type, and where the command stands: imported when it is asked for
