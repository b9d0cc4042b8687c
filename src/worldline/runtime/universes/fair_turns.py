"""Taking turns between universes, so that one with much to do does not keep one with little waiting."""

from __future__ import annotations

from collections.abc import Iterable

from worldline.model import ids


def in_turns(addresses: Iterable[ids.Address]) -> list[ids.Address]:
    """The same worlds, one of each universe in turn; those of one universe stay in their order."""
    lines: dict[ids.UniverseId, list[ids.Address]] = {}
    for at in addresses:
        lines.setdefault(at.universe, []).append(at)
    # The usual case: with one universe nothing takes turns.
    if len(lines) == 1:
        return next(iter(lines.values()))
    longest = max(map(len, lines.values()), default=0)
    return [line[place] for place in range(longest) for line in lines.values() if place < len(line)]


class Shares:
    """How much of something bounded each universe has, and which of them wait for some.

    While no other waits, a universe may have all of it. While others do, each may have its share: one that has more
    gets nothing new until the others have theirs. Nothing is taken away from it.
    """

    def __init__(self) -> None:
        self._used: dict[ids.UniverseId, int] = {}
        self._waiting: dict[ids.UniverseId, None] = {}

    @property
    def waiting(self) -> list[ids.UniverseId]:
        return list(self._waiting)

    def take(self, universe: ids.UniverseId) -> None:
        self._used[universe] = self._used.get(universe, 0) + 1

    def give_back(self, universe: ids.UniverseId) -> None:
        left = self._used[universe] - 1
        if left:
            self._used[universe] = left
        else:
            del self._used[universe]

    def wait(self, universe: ids.UniverseId) -> None:
        """It has something to do that there was no room for."""
        self._waiting[universe] = None

    def wait_no_more(self, universe: ids.UniverseId) -> None:
        self._waiting.pop(universe, None)

    def waits(self, universe: ids.UniverseId) -> bool:
        return universe in self._waiting

    def room(self, universe: ids.UniverseId, total: int) -> int:
        """How much more of `total` it may take, as far as the others are concerned."""
        others = len(self._waiting) - (universe in self._waiting)
        if not others:
            return total
        # One at least: with more universes than places, each would have a share of none.
        return max(0, max(1, total // (others + 1)) - self._used.get(universe, 0))
