"""Going through all worlds of all universes, some at a time: a turn costs the same however many there are."""

from __future__ import annotations

from collections.abc import Sequence

from worldline.layers import worlds
from worldline.model import ids
from worldline.roles.universes.served import Universes
from worldline.store import kv

UNIVERSES_AT_ONCE = 8


class Sweep:
    """Where the next turn goes on: in which universe, behind which world."""

    def __init__(self, universes: Universes) -> None:
        self._universes = universes
        self._line: dict[ids.UniverseId, ids.WorldId | None] = {}  # still to be gone through, and behind which world

    def next(self, most: int) -> dict[ids.UniverseId, kv.Range]:
        """The next pages, with about so many worlds in all."""
        self._line = {each: after for each, after in self._line.items() if self._universes.serves(each)}
        if not self._line:
            self._line = dict.fromkeys(self._universes.known)
        chosen = list(self._line)[:UNIVERSES_AT_ONCE]
        return {
            each: worlds.list_range(each, after=self._line[each], count_max=max(1, most // len(chosen)))
            for each in chosen
        }

    def listed(self, chosen: Sequence[ids.UniverseId], read: kv.Snapshot) -> list[ids.Address]:
        """The worlds of these pages."""
        found: list[ids.Address] = []
        for index, universe in enumerate(chosen):
            page = read.page(index)
            listed = worlds.listed_at(universe, page)
            found += listed
            if page.more:
                self._line[universe] = listed[-1].world
            else:
                self._line.pop(universe, None)
        return found
