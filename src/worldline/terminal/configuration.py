"""The settings of a process that a command starts, and where each comes from.

The last of these that names a setting decides: the default, `worldline.toml`, the environment
(`WORLDLINE_SET_WORKER_MAX_INBOX_BATCH=64`), the command line (`--set worker.max_inbox_batch=64`, or an option
of its own such as `--capacity`). On the command line a setting is named once. A name that is no setting is refused
everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click
import msgspec

from worldline.base import errors
from worldline.model import setting_names
from worldline.model.settings import Settings
from worldline.runtime import environment
from worldline.terminal import store_choice, suggest

DEFAULT = "default"
SET = "--set"
# variables that were there before
BY_ITSELF = {"cache.folder": environment.CACHE, "cache.bytes_max": environment.CACHE_BYTES}

Function = Callable[..., Any]


class SettingValue(msgspec.Struct, frozen=True):
    """What a setting was set to, and by what: an option, a variable, a file."""

    value: Any
    origin: str


class Configured(msgspec.Struct, frozen=True):
    """The settings of a process, and the origins of those that are not the default."""

    settings: Settings
    origins: dict[str, str]

    def origin(self, name: str) -> str:
        return self.origins.get(name, DEFAULT)


def configure(
    place: store_choice.StoreChoice,
    sets: Sequence[str] = (),
    options: Mapping[str, SettingValue] | None = None,
    base: Settings | None = None,
) -> Configured:
    """Put together what the project, the environment and the command line say."""
    said = {name: SettingValue(value, place.project or store_choice.FILE) for name, value in place.settings.items()}
    # In this order: each line may replace what stands above it, which is the order of precedence.
    said |= _of_environment(environment.settings())
    typed = dict(options or {})
    for name, value in parse(sets).items():
        if name in typed:  # two words on one command line: which one is meant cannot be told
            raise errors.BadInput(f"{name} is given by {typed[name].origin} and by {SET}; leave one away")
        typed[name] = SettingValue(value, SET)
    said |= typed
    for name, (other, part) in setting_names.FOLLOWING.items():
        # A setting that follows another one keeps its share of it, unless it was named itself.
        if other in said and name not in said and type(said[other].value) is int:
            said[name] = SettingValue(max(1, said[other].value // part), other)
    return Configured(_made(said, base), {name: each.origin for name, each in said.items()})


def parse(sets: Iterable[str]) -> dict[str, Any]:
    """Return what `--set NAME=VALUE` says. A name may be given once."""
    found: dict[str, Any] = {}
    for each in sets:
        name, equals, text = each.partition("=")
        if not equals:
            raise errors.BadInput(f"{SET} takes NAME=VALUE, such as worker.max_inbox_batch=64, not {each!r}")
        check_name(name, SET)
        if name in found:
            raise errors.BadInput(f"{SET} names {name} twice; leave one away")
        found[name] = setting_names.value_of(name, text)
    return found


def check_name(name: str, origin: str, known: Iterable[str] = setting_names.ALL) -> str:
    names = list(known)
    if name not in names:
        meant = suggest.near(name, names)
        if not meant:  # a field without its section, or one of another section
            field = name.rpartition(".")[2]
            meant = suggest.did_you_mean([repr(each) for each in names if each.rpartition(".")[2] == field])
        raise errors.BadInput(f"{origin}: no setting {name!r}; `worldline settings` lists them{meant}")
    return name


def _of_environment(variables: Mapping[str, str]) -> dict[str, SettingValue]:
    found: dict[str, SettingValue] = {}
    for name, variable in BY_ITSELF.items():
        if variables.get(variable):  # an empty variable is as good as none, as in shells
            found[name] = _variable(name, variable, variables[variable])
    for variable, text in variables.items():
        if not variable.startswith(setting_names.VARIABLE):
            continue
        # Refused, not left out: a misspelt variable would leave the default in force without any sign of it.
        if variable not in setting_names.VARIABLES:
            near = suggest.near(variable, setting_names.VARIABLES)
            raise errors.BadInput(f"the variable {variable} names no setting; `worldline settings` lists them{near}")
        named = setting_names.VARIABLES[variable]
        found[named] = _variable(named, variable, text)
    return found


def _variable(name: str, variable: str, text: str) -> SettingValue:
    try:
        return SettingValue(setting_names.value_of(name, text), variable)
    except errors.BadInput as error:
        raise errors.BadInput(f"{variable}: {error}") from error


_CLASS = re.compile(r"^(?P<class>[A-Z]\w*)\.(?P<field>\w+)")


def _made(said: Mapping[str, SettingValue], base: Settings | None) -> Settings:
    try:
        return setting_names.made({name: each.value for name, each in said.items()}, base)
    except errors.BadInput as error:
        raise errors.BadInput(_named(str(error), said)) from error


def _named(message: str, said: Mapping[str, SettingValue]) -> str:
    """The message, with the name of the setting, and what has set it."""
    found = _CLASS.match(message)
    if found is None:
        return message
    section = found["class"].removesuffix("Settings").lower()
    name = f"{section}.{found['field']}" if section else found["field"]
    # A check may name a setting that was not said, because another one does not fit it.
    by = f"{said[name].origin}: " if name in said else ""
    return by + name + message[found.end() :]


def option(function: Function) -> Function:
    """Give a command `--set`. It gets the words as `sets`."""
    return click.option(
        "--set",
        "sets",
        multiple=True,
        metavar="NAME=VALUE",
        help="A setting of this process: worker.max_inbox_batch=64; `worldline settings` lists them.",
    )(function)


def said(**values: tuple[str, Any]) -> dict[str, SettingValue]:
    """Options of their own, by the setting that each stands for: `worker__scan_ms=("--scan", 300)`. None: not given."""
    return {
        name.replace("__", "."): SettingValue(value, by) for name, (by, value) in values.items() if value is not None
    }
