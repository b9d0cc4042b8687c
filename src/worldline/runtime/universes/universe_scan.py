"""The scan: which universes there are, and in which of them something may be waiting.

For a process that serves many. One turn reads the names of all universes, and of each that is served the first key of
its due queues and hints: one request each, many in one read. A universe without any costs that and nothing else: no
role looks into it. Where there is one, the roles are told, and look for themselves.

Between two scans, what the store says was written is passed on (`note`): roles look at once into that universe. What is
lost on the way is found by the next scan, so nothing waits for longer than that.
"""

from __future__ import annotations

from collections.abc import Collection

from worldline.base import env as envs
from worldline.base import limits
from worldline.codec import tuples
from worldline.keys import keyspace_table, space
from worldline.keys.space import InStore, InUniverse, KeyRoot
from worldline.layers import universes as layer
from worldline.model import ids
from worldline.runtime import wakeup
from worldline.runtime.universes import served_universes
from worldline.runtime.universes.served_universes import Universes
from worldline.store import kv

PAGE = 1_000  # universes looked at in one read

_ROOT = len(space.part(KeyRoot.UNIVERSE))
_ID = slice(_ROOT + 1, _ROOT + 1 + limits.ID_BYTES)  # behind its type code
_HINT, _DUE = keyspace_table.row(InUniverse.HINT), keyspace_table.row(InUniverse.DUE)
_DELETED = keyspace_table.row(InUniverse.DELETION)
_UNIVERSES_DELETED = keyspace_table.row(InStore.UNIVERSE_DELETION)
_NAMES = keyspace_table.row(InStore.UNIVERSE_NAME)

assert PAGE < limits.READ_REQUESTS_MAX
assert InUniverse.DUE < InUniverse.HINT, "one range has the pointers and then the hints"


class Scan:
    """The role."""

    def __init__(self, engine: kv.Engine, env: envs.Env, universes: Universes, *, scan_ms: int) -> None:
        self._engine = engine
        self._env = env
        self._universes = universes
        self._scan_ms = scan_ms
        self._watch = wakeup.Wakeup(engine, env, [])
        self.scans = 0

    def wake(self) -> None:
        self._watch.wake()

    async def close(self) -> None:
        await self._watch.close()

    async def tick(self) -> None:
        """One scan, and a rest."""
        self._watch.clear()
        await self.turn()
        await self._watch.rest(self._scan_ms)

    async def turn(self) -> None:
        await self.look_for_universes()
        await self._look_for_work()
        self.scans += 1

    async def look_for_universes(self) -> None:
        self._universes.update(await served_universes.read_all(self._engine))

    async def _look_for_work(self) -> None:
        chosen = self._universes.known
        deleted = kv.Range(
            *tuples.prefix_range(space.part(KeyRoot.STORE) + space.part(InStore.UNIVERSE_DELETION)), count_max=1
        )
        for start in range(0, max(1, len(chosen)), PAGE):
            part = chosen[start : start + PAGE]
            read = await self._engine.read(deleted, *(layer.waiting_range(each) for each in part))
            if read.page(0).items and not start:
                self._universes.deleted(None)
            for index, universe in enumerate(part):
                for key, _ in read.page(1 + index).items:
                    self._universes.hinted(universe)
                    # A pointer stands before all hints, of which there may be some behind it.
                    if keyspace_table.of(key) is not _HINT:
                        self._universes.due(universe)

    def note(self, keys: Collection[bytes] | None) -> None:
        """The store says what was written: roles look there at once. None: anywhere; the scan looks."""
        # It is not known what was written: it may be the name of a new universe, too.
        if keys is None:
            self._watch.wake()
            return
        for key in keys:
            row = keyspace_table.of(key)
            if row is _HINT:
                self._universes.hinted(ids.UniverseId(key[_ID]))
            elif row is _DUE:
                self._universes.due(ids.UniverseId(key[_ID]))
            elif row is _DELETED:
                self._universes.deleted(ids.UniverseId(key[_ID]))
            elif row is _NAMES:
                self._watch.wake()
            elif row is _UNIVERSES_DELETED:
                self._universes.deleted(None)
