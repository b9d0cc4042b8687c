"""Commands as click finds them: those of the core, and those that features bring.

A feature says where a command stands (`Feature.commands`). It is imported when it is asked for: to be run, or for its
line in the help.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, MutableMapping

import click

from worldline.host.feature_list import FEATURES


class GroupCommands(MutableMapping[str, click.Command]):
    """The commands of one group, by name. `group`: the word it is called by; empty for the command line itself."""

    def __init__(self, core: Iterable[click.Command], *, group: str = "") -> None:
        self._loaded = {str(each.name): each for each in core}
        self._places = _places(group)

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            self._loaded[name] = _load(self._places[name])
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._loaded, **self._places})

    def __len__(self) -> int:
        return len({**self._loaded, **self._places})

    def __contains__(self, name: object) -> bool:
        return name in self._loaded or name in self._places  # without importing it


def _places(group: str) -> dict[str, str]:
    """Where the commands of features stand that are called by a word in this group."""
    found = {}
    for feature in FEATURES:
        for words, place in feature.commands.items():
            parent, _, name = words.rpartition(" ")
            if parent == group:
                found[name] = place
    return found


def _load(place: str) -> click.Command:
    module, _, name = place.partition(":")
    command: click.Command = getattr(importlib.import_module(module), name)
    return command
