"""Settings of a universe: what every process keeps of its worlds' past, and when inputs are refused.

Per what:      universe
Changes:       when an operator chooses some, and when a host notes its own
Keys:          (UNIVERSE, u, SETTINGS) -> UniverseSettings; absent means none
Present:       from the first change on
"""

from __future__ import annotations

from worldline.keys import space
from worldline.model import ids
from worldline.model.universe_settings import UniverseSettings

_SETTINGS = space.part(space.InUniverse.SETTINGS)

SETTINGS = space.ValueCodec(space.ValueKind.SETTINGS, UniverseSettings)


def settings_key(of: ids.UniverseId) -> bytes:
    return space.universe(of) + _SETTINGS
