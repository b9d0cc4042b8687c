"""A program whose authors did everything wrong, for simulation: no host may die of it, and no other world may wait.

Handlers raise exceptions of every kind, some of which cannot even be printed. One meets a `MemoryError` the first time
it is called in the life of a process, and none after it, so what it counts must count once. A workflow takes whatever
is thrown at it, also what is meant to end it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import worldline as wl
from worldline.sim.runtime.sim_loop import HOST

hostiles = wl.Program("hostiles")
SWALLOWS_MAX = 5_000  # a coroutine that was not given up by then would never have ended
ENDLESS: list[str] = []  # the workflows for which that was so, in this run


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("this has no words")


class Uncoded(Exception):
    @property
    def code(self) -> str:
        raise RuntimeError("this has no code")


class Interrupted(KeyboardInterrupt):
    """Raised by a handler: no key was pressed."""


RAISES: dict[str, type[BaseException]] = {
    "unprintable": Unprintable,
    "uncoded": Uncoded,
    "stop": StopIteration,
    "generator": GeneratorExit,
    "cancelled": asyncio.CancelledError,
    "exit": SystemExit,
    "interrupt": Interrupted,
    "plain": ValueError,
}
HOW = list(RAISES)


@dataclass(frozen=True)
class Evil:
    """What no handler survives."""

    id: str
    how: str


@dataclass(frozen=True)
class Starved:
    """What a handler takes as soon as there is memory again."""

    id: str


@hostiles.reducer()
@dataclass
class Victim:
    ids: dict[str, int] = field(default_factory=dict)

    @wl.on
    def evil(self, event: Evil) -> None:
        self.ids[event.id] = 1_000_000  # must leave no trace
        raise RAISES[event.how](event.how)

    @wl.on
    def starved(self, event: Starved) -> None:
        self.ids[event.id] = self.ids.get(event.id, 0) + 1
        host = HOST.get(None)  # none: the checks at the end
        if host is not None and host.first_time("starved"):
            raise MemoryError("nothing is left")


@hostiles.workflow
async def stubborn(name: str) -> str:
    swallowed = 0
    while True:
        try:
            await wl.sleep(1)
        except:  # noqa: E722 - as people write it
            swallowed += 1
        else:
            return name
        if swallowed > SWALLOWS_MAX:
            ENDLESS.append(name)
            return name
