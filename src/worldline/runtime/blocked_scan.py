"""Worlds with blocked runs: found by a worker that may have code which fits them.

A blocked run waits for other code, and for no input, so no ready hint tells of its world. The step that blocks a run
leaves a hint of its own, which stays (`worldline.layers.ready`); it is read here, a page at a time. A worker goes
through all of them when it starts, and again with every slow search: a world is left to living workers with its own
code, and they may be gone by then.

Of many universes only those are read in which something is said to wait, which such a hint is; and each once between
two slow searches, however many inputs it gets.
"""

from __future__ import annotations

from worldline.layers import ready
from worldline.model import ids
from worldline.runtime.universes.served_universes import Universes
from worldline.store import kv, paging

PAGE = 128  # worlds that one search looks at
UNIVERSES_AT_ONCE = 8


class BlockedScan:
    """Where the next page begins, in each universe that is still to be gone through."""

    def __init__(self, engine: kv.Engine, universes: Universes) -> None:
        self._engine = engine
        self._universes = universes
        self._line: dict[ids.UniverseId, kv.Range] = {}
        self._looked: dict[ids.UniverseId, None] = {}  # at, since all of them are gone through again
        universes.on_hint.append(self._touch)

    @property
    def pending(self) -> bool:
        """Whether there is another page."""
        return bool(self._line)

    def restart(self) -> None:
        """Go through all of them again."""
        self._looked.clear()
        if self._universes.one is not None:
            self._touch(self._universes.one)

    def _touch(self, universe: ids.UniverseId) -> None:
        # Every input of a universe leaves a hint; without this it would be read again for each.
        if universe not in self._looked:
            self._looked[universe] = None
            self._line[universe] = ready.read_range(universe, priority=ready.BLOCKED, count_max=PAGE)

    async def next(self) -> list[ids.Address]:
        """The worlds of the next pages."""
        # A universe may have gone since its page was put in line.
        self._line = {each: page for each, page in self._line.items() if self._universes.serves(each)}
        chosen = dict(list(self._line.items())[:UNIVERSES_AT_ONCE])
        read = await self._engine.read(*chosen.values())
        found: list[ids.Address] = []
        for index, (universe, asked) in enumerate(chosen.items()):
            page = read.page(index)
            found += [hint.at for hint in ready.decode(universe, page, priority=ready.BLOCKED)]
            rest = paging.rest_of(asked, page)
            if rest is None:
                del self._line[universe]
            else:
                self._line[universe] = rest
        return found
