"""How much more an effect worker may claim: by the limits of each kind, by what the process performs at once, and in a
process that serves many universes by what is fair between them (`runtime/universes/fair_turns.py`).

No kind takes all places. Some are reserved, and divided by the number of kinds: that much of each kind can always be
performed at once, however long the others take. What a kind has beyond that, it has of the other places::

    concurrency = 288
    |<------- 256: every kind, first come, first served ------->|<- 32 reserved: kinds with less than their share ->|

A kind with less than its share may use both parts, so all shares together fit as long as there are not more kinds than
reserved places; with more, a share is one place, and they take turns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from worldline.effects import rate_limit
from worldline.kernel.authoring.calls import Effect
from worldline.model import ids
from worldline.model.settings import AdapterSettings
from worldline.runtime.universes import fair_turns

RESERVED_PART = 8  # of all places, at most one of so many is reserved: with few, none is


class EffectKind(msgspec.Struct, frozen=True):
    """A kind of effect that this process performs, with its limits and its queue."""

    queue: str
    effect: Effect[..., Any]
    limit: rate_limit.Limit
    shares: fair_turns.Shares  # of what the limit allows, between universes


class ClaimRoom:
    """`busy`: how much is performed or promised now. `many`: whether universes share it."""

    def __init__(
        self, settings: AdapterSettings, kinds: Iterable[EffectKind], busy: Callable[[], int], *, many: bool
    ) -> None:
        self._settings = settings
        self._kinds = list(kinds)
        self._busy = busy
        self._many = many
        self._shares = fair_turns.Shares()  # of all that is performed at once
        self._reserved = min(settings.reserved, settings.concurrency // RESERVED_PART)
        self._share = max(1, self._reserved // max(1, len(self._kinds)))  # of each kind, of what is reserved
        self.starved = False  # something was left in a queue for want of room

    def of(self, kind: EffectKind, universe: ids.UniverseId | None = None) -> int:
        """How much more of a kind may be claimed now; in a universe, while others wait."""
        most = self._settings.concurrency
        left = most - self._busy()
        # What is reserved is for what the kind lacks of its share; with more, it has to leave that to others.
        free = max(left - self._reserved, min(left, self._share - kind.limit.taken))
        free = max(0, min(self._settings.claim_batch, free, kind.limit.room()))
        if not self._many or not free or universe is None:
            return free
        free = min(free, self._shares.room(universe, most))
        return free if kind.limit.most is None else min(free, kind.shares.room(universe, kind.limit.most))

    def take(self, kind: EffectKind, universe: ids.UniverseId) -> rate_limit.Slot:
        if not self._many:
            return kind.limit.take()
        self._shares.take(universe)
        kind.shares.take(universe)
        return kind.limit.take(functools.partial(self._give_back, kind, universe))

    def _give_back(self, kind: EffectKind, universe: ids.UniverseId) -> None:
        self._shares.give_back(universe)
        kind.shares.give_back(universe)

    def starve(self, kind: EffectKind, universe: ids.UniverseId) -> None:
        """There is something of this kind that there is no room for."""
        self.starved = True
        if self._many:
            self._shares.wait(universe)
            kind.shares.wait(universe)

    def look(self) -> None:
        """Forget what was left in queues. A universe that waits continues to wait until it is `satisfied`: what
        others ask for meanwhile must not take its place.
        """
        self.starved = False

    def satisfied(self, kind: EffectKind, universe: ids.UniverseId) -> None:
        """Nothing of this kind is left there for want of room."""
        if self._many:
            kind.shares.wait_no_more(universe)
            if not any(each.shares.waits(universe) for each in self._kinds):
                self._shares.wait_no_more(universe)

    def forget(self, universe: ids.UniverseId) -> None:
        """It waits for nothing."""
        self._shares.wait_no_more(universe)
        for kind in self._kinds:
            kind.shares.wait_no_more(universe)

    @property
    def waiting(self) -> list[ids.UniverseId]:
        """The universes that wait for room, if there are many."""
        return self._shares.waiting
