"""Settings that are stored with a universe: looking at them, and choosing them.

Every process goes by them, whatever its own settings say: those about retention with the next compaction or snapshot of
each world, those about pressure within `pressure.sample_ms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from worldline.base import errors
from worldline.client.connection import Connection
from worldline.layers import universe_settings
from worldline.model import setting_names
from worldline.store import kv, transact


class UniverseSetting(msgspec.Struct, frozen=True):
    """One setting that is stored with a universe. `by`: an operator has chosen it, or a host that was started with it
    has noted it, for the others to go by.
    """

    name: str
    value: int | bool
    by: Literal["operator", "host"]


async def stored(connection: Connection) -> list[UniverseSetting]:
    """Return the settings that are stored, by name."""
    read = await connection.store.engine.read(universe_settings.get(connection.id))
    record = universe_settings.decode(connection.id, read.value(0)).record
    return [
        UniverseSetting(name, setting_names.value_of(name, text), "operator" if name in record.chosen else "host")
        for name, text in sorted(record.values.items())
        if name in setting_names.OF_UNIVERSE  # a newer version may have stored a name that this one does not know
    ]


async def choose(connection: Connection, values: Mapping[str, Any]) -> bool:
    """Choose these; None: a setting of each process again. False if it was so already."""
    texts = {name: None if value is None else setting_names.text_of(value) for name, value in values.items()}
    engine = connection.store.engine

    async def attempt() -> transact.NothingToWrite[bool] | transact.Write[bool]:
        read = await engine.read(universe_settings.get(connection.id))
        known = universe_settings.decode(connection.id, read.value(0))
        # Inside the attempt: whether values fit together depends on those that are stored at this moment.
        _check(connection, values, known)
        batch = kv.Batch()
        if not universe_settings.choose(batch, known, texts, time_us=read.time_us):
            return transact.NothingToWrite(False)
        return transact.Write(batch, lambda _: True)

    return await transact.run(engine, connection.store.env, attempt)


def _check(connection: Connection, values: Mapping[str, Any], known: universe_settings.UniverseSettingsRecord) -> None:
    """Refuse a name that is not for a universe, and values that no process could work with."""
    for name in values:
        if name not in setting_names.OF_UNIVERSE:
            raise errors.BadInput(refusal(name))
    kept = {
        name: setting_names.value_of(name, text)
        for name, text in known.record.values.items()
        if name in setting_names.OF_UNIVERSE and name not in values
    }
    # Together with those that stay: each value may be right by itself, and no process could work with all of them.
    setting_names.made(kept | {name: value for name, value in values.items() if value is not None}, connection.settings)


def refusal(name: str) -> str:
    """Return why a name is none that is stored with a universe."""
    if name in setting_names.ALL:
        return f"{name} is a setting of each process: use worldline.toml, --set, or wl.open(settings=)"
    return f"no setting {name!r} of a universe; there are {', '.join(setting_names.OF_UNIVERSE)}"
