"""Settings that are stored with a universe, so that every process goes by the same.

They are about what is kept of worlds (retention) and when inputs are refused (pressure): where two processes that go by
different ones would undo what the other does. An operator chooses them. A host whose own settings say something else
about retention than the defaults notes that, so that a command by hand and other hosts keep the same; what was chosen
stays. Everything else is a setting of each process.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from worldline.keys import universe_settings as keys
from worldline.model import ids, setting_names
from worldline.model.settings import PressureSettings, WorkerSettings
from worldline.model.universe_settings import UniverseSettings, Values
from worldline.store import kv


class UniverseSettingsRecord(msgspec.Struct, frozen=True):
    """The settings of a universe as they were read. `raw` is None if it never had any."""

    universe: ids.UniverseId
    record: UniverseSettings
    raw: bytes | None

    def worker(self, own: WorkerSettings) -> WorkerSettings:
        """The settings of a process, but for those of the universe."""
        return msgspec.structs.replace(own, **setting_names.fields_of("worker", self.record.values))

    def pressure(self, own: PressureSettings) -> PressureSettings:
        return msgspec.structs.replace(own, **setting_names.fields_of("pressure", self.record.values))


def get(universe: ids.UniverseId) -> kv.Get:
    return kv.Get(keys.settings_key(universe))


def decode(universe: ids.UniverseId, raw: bytes | None) -> UniverseSettingsRecord:
    found = keys.SETTINGS.get(raw)
    return UniverseSettingsRecord(universe, UniverseSettings() if found is None else found, raw)


def choose(batch: kv.Batch, known: UniverseSettingsRecord, values: Mapping[str, str | None], *, time_us: int) -> bool:
    """What an operator wants from now on. None: a setting of each process again; what hosts have noted of it is
    forgotten, too. False if it was so already. Guard: the record as it was read.
    """
    chosen, noted = dict(known.record.chosen), dict(known.record.noted)
    for name, value in values.items():
        if value is None:
            chosen.pop(name, None)
            noted.pop(name, None)
        else:
            chosen[name] = value
    if (chosen, noted) == (known.record.chosen, known.record.noted):
        return False
    _replace(batch, known, chosen, noted, time_us)
    return True


def note(batch: kv.Batch, known: UniverseSettingsRecord, own: Values, *, time_us: int) -> UniverseSettingsRecord:
    """What a host was started with. Guard: the record as it was read."""
    # What other hosts have noted stays, but for the settings that this host was started with.
    return _replace(batch, known, known.record.chosen, {**known.record.noted, **own}, time_us)


def _replace(
    batch: kv.Batch, known: UniverseSettingsRecord, chosen: Values, noted: Values, time_us: int
) -> UniverseSettingsRecord:
    key = keys.settings_key(known.universe)
    if known.raw is None:
        batch.absent(key)
    else:
        batch.expect(key, known.raw)
    # Counted, so that the bytes change even if the values are what they were before.
    record = UniverseSettings(known.record.changes + 1, chosen, noted, time_us)
    raw = keys.SETTINGS.pack(record)
    batch.put(key, raw)
    return UniverseSettingsRecord(known.universe, record, raw)
