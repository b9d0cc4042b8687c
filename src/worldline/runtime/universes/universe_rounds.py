"""A role that goes round in one universe, for many of them: one after the other, never two at once.

What it costs does not depend on how many universes there are: there is one turn in a time, and a round through all of
them takes longer the more there are. Universes share the time between two rounds of one: with 300 of them and ten
minutes, one begins every two seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from worldline.base import env as envs
from worldline.model import ids
from worldline.runtime import wakeup
from worldline.runtime.janitor_job import JanitorJob
from worldline.runtime.universes.served_universes import Universes
from worldline.store import kv


class Rounding(Protocol):
    """One universe's part."""

    @property
    def within_ms(self) -> int:
        """The rest between two turns of a round."""

    async def remove(self) -> bool:
        """Some of what was deleted there, which does not wait for its turn. Returns whether that was all."""

    async def turn(self) -> bool:
        """One bounded part of a round. Returns whether that was the last."""

    async def close(self) -> None: ...


class Rounds:
    """`make`: what goes round in a universe, made when its first round comes. `beside`: jobs for the store as a whole,
    which have a turn with each of these.
    """

    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        universes: Universes,
        make: Callable[[ids.UniverseId], Rounding],
        *,
        turn_ms: int,
        round_ms: int,
        beside: Sequence[JanitorJob] = (),
    ) -> None:
        self._universes = universes
        self._make = make
        self._turn_ms = turn_ms
        self._round_ms = round_ms
        self._beside = beside
        self._watch = wakeup.Wakeup(engine, env, [])
        self._urgent: dict[ids.UniverseId, None] = {}  # something was deleted there
        self._line: list[ids.UniverseId] = []  # those whose turn comes in this round, the one that has it first
        self._made: dict[ids.UniverseId, Rounding] = {}
        self._leaving: list[Rounding] = []
        universes.on_gone.append(self._gone)
        universes.on_delete.append(self._deleted)

    def wake(self) -> None:
        self._watch.wake()

    def _deleted(self, universe: ids.UniverseId | None) -> None:
        """A world was deleted there; None: a universe was."""
        if universe is not None:
            self._urgent[universe] = None
        self._watch.wake()

    def _gone(self, universe: ids.UniverseId) -> None:
        self._line = [each for each in self._line if each != universe]
        gone = self._made.pop(universe, None)
        if gone is not None:
            self._leaving.append(gone)

    async def close(self) -> None:
        await self._watch.close()
        for each in [*self._made.values(), *self._leaving]:
            await each.close()
        for job in self._beside:
            await job.close()

    async def tick(self) -> None:
        """One turn, and a rest: a short one within a universe's round, a longer one after it."""
        self._watch.clear()
        removed = await self._remove()
        over, within_ms = await self.turn()
        pause_ms = max(self._turn_ms, self._round_ms // max(1, len(self._universes.known)))
        await self._watch.rest(pause_ms if over and removed else within_ms)

    async def _remove(self) -> bool:
        """Some of what was deleted, wherever that was. Returns whether that was all."""
        removed = True
        for each in self._beside:
            removed = await each.turn() and removed
        for universe in list(self._urgent):
            # Before the removal: what is deleted while it runs makes the universe urgent again.
            del self._urgent[universe]
            if self._universes.serves(universe) and not await self._of(universe).remove():
                self._urgent[universe] = None
        return removed and not self._urgent

    async def turn(self) -> tuple[bool, int]:
        """Returns whether a universe's round is over, and else how long to rest."""
        # Here, because `_gone` cannot wait for it; and between two turns none of them is at work.
        while self._leaving:
            await self._leaving.pop().close()
        self._line = self._line or self._universes.known
        if not self._line:
            return True, self._turn_ms
        universe = self._line[0]
        going = self._of(universe)
        over = await going.remove() and await going.turn()
        if over and self._line and self._line[0] == universe:  # it may have gone meanwhile
            del self._line[0]
        return over, going.within_ms

    def _of(self, universe: ids.UniverseId) -> Rounding:
        going = self._made.get(universe)
        if going is None:
            going = self._made[universe] = self._make(universe)
        return going
