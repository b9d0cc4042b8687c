"""Settings that are stored with a universe, for every process that has to do with it."""

from __future__ import annotations

import msgspec

Values = dict[str, str]  # names and texts of `setting_names`


class UniverseSettings(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`chosen` by an operator; `noted` by hosts, of the settings that they were started with. What is chosen goes
    first.
    """

    changes: int = 0
    chosen: Values = {}
    noted: Values = {}
    time_us: int = 0

    @property
    def values(self) -> Values:
        return {**self.noted, **self.chosen}
