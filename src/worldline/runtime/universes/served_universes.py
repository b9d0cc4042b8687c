"""The universes of a store, and those of them that a process serves: one that is given, or any number found by scan.

Roles keep what they need of each universe by its id. They are told when one is there or gone (`on_new`, `on_gone`), and
in which one something may be waiting: a hint for a world (`on_hint`), due work (`on_due`), something deleted
(`on_delete`). A process that serves one universe is told nothing: its roles wait for what is written there, and scan
it, themselves.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from worldline.base import errors
from worldline.layers import universes
from worldline.model import ids
from worldline.store import kv, paging

PAGE = 1_000
ALL = "*"


class Served(msgspec.Struct, frozen=True):
    """A universe that is served. Its name is for people, and for patterns; its id is what its keys begin with."""

    id: ids.UniverseId
    name: str


async def read_all(engine: kv.Engine) -> list[Served]:
    """All universes of a store, by name."""
    found: list[Served] = []
    async for page in paging.RangePages(engine, universes.names_range(count_max=PAGE)):
        found += [Served(universe, name) for name, universe in universes.decode_names(page)]
    return found


def check_patterns(names: Any) -> list[str]:
    """Names and patterns as they were given: one, or several."""
    found = [names] if isinstance(names, str) else list(names)
    if not found:
        raise errors.BadInput('universes= is empty; name some, or all with "*"')
    for each in found:
        if not isinstance(each, str):
            raise errors.BadInput(f"universes= takes names and patterns, not {each!r}")
        ids.check_name(each, "a universe's name")
    return found


def is_pattern(text: str) -> bool:
    """Whether it stands for universes that there are, and not for one that is made if it is missing."""
    return any(sign in text for sign in "*?[")


Told = Callable[[ids.UniverseId], None]


class Universes:
    """The universes that this process serves. `patterns` is empty if that is the given one alone, for ever."""

    def __init__(self, universes: Iterable[Served] = (), *, patterns: Sequence[str] = ()) -> None:
        self._patterns = list(patterns)
        self._served: dict[ids.UniverseId, Served] = {each.id: each for each in universes}
        assert self._patterns or len(self._served) == 1
        self.on_new: list[Told] = []
        self.on_gone: list[Told] = []
        self.on_hint: list[Told] = []
        self.on_due: list[Told] = []
        self.on_delete: list[Callable[[ids.UniverseId | None], None]] = []

    @classmethod
    def only(cls, universe: ids.UniverseId, name: str = "") -> Universes:
        return cls([Served(universe, name or universe.hex())])

    # --- Which they are -----------------------------------------------------------------------------------------

    @property
    def one(self) -> ids.UniverseId | None:
        """The universe, if it is one that was given; None if any number is found by scan."""
        return None if self._patterns else next(iter(self._served))

    @property
    def all(self) -> list[Served]:
        return list(self._served.values())

    @property
    def known(self) -> list[ids.UniverseId]:
        return list(self._served)

    def serves(self, universe: ids.UniverseId) -> bool:
        return universe in self._served

    def name(self, universe: ids.UniverseId) -> str:
        found = self._served.get(universe)
        return universe.hex() if found is None else found.name

    def wants(self, name: str) -> bool:
        """Whether a universe of this name is served if there is one."""
        # Not `fnmatch`: that ignores case on some systems, and names differ by it.
        return any(fnmatch.fnmatchcase(name, each) for each in self._patterns)

    def label(self) -> str:
        """What a worker's heartbeat says of them."""
        return ALL if ALL in self._patterns else ",".join(each.hex() for each in self._served)

    def update(self, universes: Iterable[Served]) -> None:
        """These are all that there are in the store now."""
        wanted = {each.id: each for each in universes if self.wants(each.name)}
        gone = [each for each in self._served if each not in wanted]
        new = [each for each in wanted if each not in self._served]
        # Before any role is told: what it does then asks what is served.
        self._served = wanted
        for told, changed in ((self.on_gone, gone), (self.on_new, new)):
            for tell in told:
                for universe in changed:
                    tell(universe)

    # --- What may be waiting --------------------------------------------------------------------------------------

    def hinted(self, universe: ids.UniverseId) -> None:
        """A world of it may have something to do."""
        if universe in self._served:
            for tell in self.on_hint:
                tell(universe)

    def deleted(self, universe: ids.UniverseId | None) -> None:
        """A world of it was deleted, or (None) a universe of the store."""
        if universe is None or universe in self._served:
            for tell in self.on_delete:
                tell(universe)

    def due(self, universe: ids.UniverseId) -> None:
        """Work of it may be due, now or soon."""
        if universe in self._served:
            for tell in self.on_due:
                tell(universe)
