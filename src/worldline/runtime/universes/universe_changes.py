"""What a world worker does when universes come and go, and when one may have a hint."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

from worldline.base import errors, probes
from worldline.codec import printable
from worldline.layers import universes as layer
from worldline.model import ids
from worldline.runtime import wakeup
from worldline.runtime.universes.served_universes import Universes
from worldline.store import kv

log = printable.logger("worldline.worker")

AT_ONCE = 16


class HintMemory(Protocol):
    """The hints that the worker has read."""

    def touch(self, universe: ids.UniverseId) -> None: ...

    def forget(self, universe: ids.UniverseId) -> None: ...


class Worlds(Protocol):
    """The worlds that the worker holds."""

    def addresses(self) -> Sequence[ids.Address]: ...

    def discard(self, at: ids.Address) -> None:
        """Throw a world's memory away."""


class UniverseChanges:
    """`forget` releases a world; `changed`: what the heartbeat says is another thing now; `start` runs something beside
    the turns of the worker.
    """

    def __init__(
        self,
        universes: Universes,
        forget: Callable[[ids.Address], Awaitable[None]],
        *,
        hints: HintMemory,
        worlds: Worlds,
        watch: wakeup.Wakeup,
        changed: Callable[[], None],
        start: Callable[[str, Coroutine[Any, Any, None]], None],
        engine: kv.Engine,
    ) -> None:
        self._engine = engine
        self._universes = universes
        self._forget = forget
        self._hints = hints
        self._worlds = worlds
        self._watch = watch
        self._changed = changed
        self._start = start
        universes.on_hint.append(self._touched)
        universes.on_new.append(self._came)
        universes.on_gone.append(self._gone)

    def _touched(self, universe: ids.UniverseId) -> None:
        """There may be a hint."""
        self._hints.touch(universe)
        self._watch.hint()
        self._watch.wake()

    def _came(self, universe: ids.UniverseId) -> None:
        """Another one is served from now on: the heartbeat says so, unless it says that all are."""
        if universe.hex() in self._universes.label():
            self._changed()
            self._watch.wake()

    def _gone(self, universe: ids.UniverseId) -> None:
        """The universe was deleted, or is not served here any more: release its worlds."""
        self._hints.forget(universe)
        leaving = [at for at in self._worlds.addresses() if at.universe == universe]
        if leaving:
            probes.hit("worker.universe-gone")
            self._start(f"leaving {universe.hex()}", self._leave(universe, leaving))

    async def _leave(self, universe: ids.UniverseId, leaving: Sequence[ids.Address]) -> None:
        """Save and release its worlds; or, of one that was deleted, write nothing there any more."""
        # A deleted universe is being emptied: what is written there now would be left behind.
        if layer.is_closed((await self._engine.read(layer.get_meta(universe))).value(0)):
            for at in leaving:
                self._worlds.discard(at)
            return
        for start in range(0, len(leaving), AT_ONCE):
            await asyncio.gather(*(self._let_go(at) for at in leaving[start : start + AT_ONCE]))

    async def _let_go(self, at: ids.Address) -> None:
        try:
            await self._forget(at)
        except errors.Error as error:  # of a deleted universe there is no lease to release
            log.info("world %s is dropped: %s", at.world.hex(), error)
        self._worlds.discard(at)
