"""Going through all worlds of all universes, a page at a time: a page costs the same however many there are, and pages
come so close together that a round takes one period.
"""

from __future__ import annotations

from collections.abc import Sequence

from worldline.layers import worlds
from worldline.model import ids
from worldline.runtime.universes.served_universes import Universes
from worldline.store import kv

UNIVERSES_AT_ONCE = 1_000


class Sweep:
    """Where the next turn continues: in which universe, behind which world."""

    def __init__(self, universes: Universes) -> None:
        self._universes = universes
        self._line: dict[ids.UniverseId, ids.WorldId | None] = {}  # still to be gone through, and behind which world

    @property
    def is_over(self) -> bool:
        """Whether the last page was the last of its round."""
        return not self._line

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

    def listed(self, chosen: Sequence[ids.UniverseId], read: kv.ReadResult) -> list[ids.Address]:
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


class Pace:
    """When the next page is due. A round takes about as long as is given for it, by how many pages the last one had;
    the first goes through at once. After each page there is a rest of the same length at least.
    """

    def __init__(self, round_us: int) -> None:
        self._round_us = round_us
        self._pages = 0  # of the last round
        self._done = 0  # of this one
        self._began_us = 0

    def next_us(self, *, began_us: int, now_us: int, is_over: bool) -> int:
        """After a page, which began and ended then."""
        if not self._done:
            self._began_us = began_us
        self._done += 1
        part_us = self._round_us
        if is_over:
            self._pages, self._done = self._done, 0
        else:
            part_us = self._round_us * self._done // (self._pages + 1) if self._pages else 0
        return max(self._began_us + part_us, 2 * now_us - began_us)
