"""The ready hints of one universe or of many, as one role has seen them.

Hints are appended, so a scan reads on from where the last one ended: from its mark, which is never above `stable`. The
hints found are remembered until they are known to be deleted: `check` reads them again by their keys. A scan costs what
is new, however many hints were deleted before. `restart` forgets all of it, for the slow search through everything. Of
many universes only those are read in which there is said to be a hint.

A world that cannot be run now collects one hint for each input. `compact` keeps the newest of them alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from worldline.base import env as envs
from worldline.base import limits
from worldline.layers import ready
from worldline.model import ids
from worldline.runtime.universes.served_universes import Universes
from worldline.store import kv, paging, transact

PAGE = 1_000
CHECKED_AT_ONCE = 1_000
UNIVERSES_AT_ONCE = 500
COMPACT_ABOVE = 16  # hints of one world
COMPACT_MAX = 1_000  # hints that one batch deletes

assert CHECKED_AT_ONCE <= limits.READ_REQUESTS_MAX
assert UNIVERSES_AT_ONCE * len(ready.PRIORITIES) <= limits.READ_REQUESTS_MAX


class HintScan:
    def __init__(self, engine: kv.Engine, env: envs.Env, universes: Universes) -> None:
        self._engine = engine
        self._env = env
        self._universes = universes
        self._touched: dict[ids.UniverseId, None] = {}  # of many: those with a hint that was not read yet
        self._marks: dict[tuple[ids.UniverseId, int], bytes] = {}
        self._known: dict[ids.Address, dict[bytes, ready.Hint]] = {}
        self._fresh: dict[ids.Address, None] = {}

    @property
    def worlds(self) -> list[ids.Address]:
        """All worlds with a hint."""
        return list(self._known)

    def has(self, at: ids.Address) -> bool:
        return at in self._known

    def restart(self) -> None:
        """Read all hints again with the next scan; of many universes, with the next after one is said to be there."""
        self._touched |= {at.universe: None for at in self._known}
        self._marks.clear()
        self._known.clear()

    def touch(self, universe: ids.UniverseId) -> None:
        """There may be a new hint."""
        self._touched[universe] = None

    def forget(self, universe: ids.UniverseId) -> None:
        """The universe is not served any more."""
        self._touched.pop(universe, None)
        for priority in ready.PRIORITIES:
            self._marks.pop((universe, priority), None)
        for at in [at for at in self._known if at.universe == universe]:
            del self._known[at]

    async def read(self) -> kv.ReadResult:
        """Read the hints since the last scan, the most urgent priority first. Returns the first snapshot."""
        one = self._universes.one
        chosen = list(self._touched) if one is None else [one]
        # Before the read: a hint that is left while it runs touches the universe again.
        self._touched.clear()
        try:
            first = None if chosen else await self._engine.read()
            for start in range(0, len(chosen), UNIVERSES_AT_ONCE):
                read = await self._read(chosen[start : start + UNIVERSES_AT_ONCE])
                first = first or read
        except BaseException:
            # They were not read, and no other hint may come to say so.
            self._touched |= dict.fromkeys(chosen)
            raise
        assert first is not None
        return first

    async def _read(self, chosen: Sequence[ids.UniverseId]) -> kv.ReadResult:
        first: kv.ReadResult | None = None
        ranges = {
            (universe, each): ready.read_range(
                universe, priority=each, start=self._marks.get((universe, each), b""), count_max=PAGE
            )
            for each in ready.PRIORITIES
            for universe in chosen
        }
        marks: dict[tuple[ids.UniverseId, int], bytes] = {}
        while ranges:
            read = await self._engine.read(*ranges.values())
            first = first or read
            for index, place in enumerate(list(ranges)):
                page = read.page(index)
                marks.setdefault(place, page.stable)  # what a later page has seen is above it
                self._add(page, *place)
                rest = paging.rest_of(ranges.pop(place), page)
                if rest is not None:
                    ranges[place] = rest
        # Only when all pages are read: after an error the next scan begins where this one began.
        self._marks |= marks
        assert first is not None
        return first

    def _add(self, page: kv.Page, universe: ids.UniverseId, priority: int) -> None:
        for hint in ready.decode(universe, page, priority=priority):
            known = self._known.setdefault(hint.at, {})
            if hint.key not in known:
                known[hint.key] = hint
                self._fresh[hint.at] = None

    def take_fresh(self) -> list[ids.Address]:
        """The worlds with hints that were found or put back since the last call."""
        fresh = [at for at in self._fresh if at in self._known]
        self._fresh.clear()
        return fresh

    def priorities(self, at: ids.Address) -> list[int]:
        return [hint.priority for hint in self._known.get(at, {}).values()]

    def take(self, at: ids.Address) -> list[ready.Hint]:
        """The hints of a world, for its holder to delete."""
        return list(self._known.pop(at, {}).values())

    def put_back(self, hints: Iterable[ready.Hint]) -> None:
        """Hints that their holder has not deleted, or does not know to be deleted."""
        for hint in hints:
            self._known.setdefault(hint.at, {})[hint.key] = hint
            self._fresh[hint.at] = None

    async def check(self, addresses: Sequence[ids.Address]) -> None:
        """Forget those hints of these worlds that are deleted by now."""
        hints = [hint for at in addresses for hint in self._known.get(at, {}).values()]
        for start in range(0, len(hints), CHECKED_AT_ONCE):
            part = hints[start : start + CHECKED_AT_ONCE]
            read = await self._engine.read(*(ready.get(hint) for hint in part))
            for index, hint in enumerate(part):
                if read.value(index) is None:
                    self._forget(hint)

    def _forget(self, hint: ready.Hint) -> None:
        known = self._known.get(hint.at, {})
        known.pop(hint.key, None)
        if not known:
            self._known.pop(hint.at, None)

    async def compact(self, at: ids.Address) -> None:
        """Keep the newest hint of a world that has many."""
        hints = list(self._known.get(at, {}).values())[-COMPACT_MAX:]
        if len(hints) <= COMPACT_ABOVE:
            return
        batch = kv.Batch()
        kept = ready.compact(batch, hints)
        if await transact.applied(self._engine, self._env, batch):
            for hint in hints:
                if hint is not kept:
                    self._forget(hint)
        else:  # its holder or another worker deletes them too
            await self.check([at])
