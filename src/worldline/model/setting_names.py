"""Settings by name: `worker.max_inbox_batch`, `on_hang`. A name is the same in `worldline.toml`, on the command line,
in the environment and in a store; it is the section of `Settings`, a dot, and the field.

Values come as text (`--set`, variables) or as data (TOML, a store). Nothing here reads either: it is given to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from worldline.base import errors
from worldline.model import settings as model
from worldline.model.settings import Settings

VARIABLE = "WORLDLINE_SET_"  # before the name of a setting, in the environment

# Where the right value of a setting follows from another one: it is that one divided by this, unless it is set itself.
FOLLOWING = {"worker.heartbeat_ms": ("worker.lease_ttl_ms", 4), "adapter.renew_ms": ("adapter.claim_ttl_ms", 3)}


class SettingName(msgspec.Struct, frozen=True):
    """One setting. `section` is empty for those of a whole process."""

    name: str
    section: str
    field: str
    type: msgspec.inspect.Type
    default: Any

    @property
    def variable(self) -> str:
        return VARIABLE + self.name.replace(".", "_").upper()

    @property
    def values(self) -> str:
        """What it may be, for people."""
        match self.type:
            case msgspec.inspect.IntType(ge=int(low), le=int(high)):
                return f"{low} to {high}"
            case msgspec.inspect.BoolType():
                return "true or false"
            case msgspec.inspect.DictType():
                return "NAME=VALUE,..."
            case _:
                return " or ".join(model.ON_HANG) if self.name == "on_hang" else "text"


def _all() -> dict[str, SettingName]:
    found: dict[str, SettingName] = {}
    for field in model.fields(Settings):
        if isinstance(field.type, msgspec.inspect.StructType):
            part = getattr(Settings(), field.name)
            for inner in model.fields(field.type.cls):
                name = f"{field.name}.{inner.name}"
                found[name] = SettingName(name, field.name, inner.name, inner.type, getattr(part, inner.name))
        else:
            found[field.name] = SettingName(field.name, "", field.name, field.type, getattr(Settings(), field.name))
    return found


ALL = _all()
SECTIONS = tuple(dict.fromkeys(each.section for each in ALL.values() if each.section))
# What is stored with a universe: every process goes by these, whatever its own settings say (`layers`).
RETENTION = tuple(
    f"worker.{field}"
    for field in (
        "segment_entries",
        "segment_ms",
        "segment_margin",
        "segment_changes",
        "snapshots_kept",
        "snapshots_kept_ms",
        "journal_kept_ms",
    )
)
OF_UNIVERSE = (*RETENTION, *(name for name, each in ALL.items() if each.section == "pressure"))
VARIABLES = {each.variable: each.name for each in ALL.values()}


def value_of(name: str, text: str) -> Any:
    """The value that a text stands for. Its range is checked where settings are made of it."""
    match ALL[name].type:
        case msgspec.inspect.IntType():
            digits = text.removeprefix("-").replace("_", "")
            # Bounded, because `int` raises an error of its own for a text of thousands of digits.
            if not (digits.isascii() and digits.isdecimal() and len(digits) <= 30):
                raise errors.BadInput(f"{name} is {text!r}; use a whole number from {ALL[name].values}")
            return int(text.replace("_", ""))
        case msgspec.inspect.BoolType():
            if text not in ("true", "false"):
                raise errors.BadInput(f"{name} is {text!r}; use true or false")
            return text == "true"
        case msgspec.inspect.DictType():
            pairs = [each.partition("=") for each in text.split(",") if each]
            return {key: value for key, _, value in pairs}
        case _:
            return text


def text_of(value: Any) -> str:
    """A value as `value_of` takes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return ",".join(f"{key}={each}" for key, each in value.items())
    return str(value)


def made(values: Mapping[str, Any], base: Settings | None = None) -> Settings:
    """Settings with these values, by name, and otherwise those of `base`. `BadInput` if one cannot be."""
    settings = base or Settings()
    whole: dict[str, Any] = {}
    for section in SECTIONS:
        inside = {ALL[name].field: value for name, value in values.items() if ALL[name].section == section}
        if inside:
            whole[section] = msgspec.structs.replace(getattr(settings, section), **inside)
    whole |= {name: value for name, value in values.items() if not ALL[name].section}
    return msgspec.structs.replace(settings, **whole) if whole else settings


def fields_of(section: str, stored: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a section among what is stored. A name that this release does not know is left alone."""
    return {
        ALL[name].field: value_of(name, text)
        for name, text in stored.items()
        if name in OF_UNIVERSE and ALL[name].section == section
    }


def said_of_retention(worker: model.WorkerSettings) -> dict[str, str]:
    """What settings of a worker say about retention that is not the default, as it is stored."""
    own = {name: getattr(worker, ALL[name].field) for name in RETENTION}
    return {name: text_of(value) for name, value in own.items() if value != ALL[name].default}


def get(settings: Settings, name: str) -> Any:
    """The value of a setting."""
    named = ALL[name]
    return getattr(getattr(settings, named.section) if named.section else settings, named.field)
