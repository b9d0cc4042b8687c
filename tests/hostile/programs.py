"""Hostile programs by number: place and behaviour are drawn from a seed, so each can be made again anywhere.

All pairs of a place and a behaviour stand in an order that the seed shuffles, and program N has the Nth of them. Every
third has another pair besides, in the same program.
"""

from __future__ import annotations

import functools
import random
from typing import Any

import msgspec

import worldline as wl
from tests import options
from tests.hostile import awaits, exceptions, in_effects, in_reducers, in_workflows, making, oddities
from tests.hostile.behaviours import Behaviour, Kind, quiet
from tests.hostile.making import Act, Making, Place, Run
from worldline.codec import digest

SEED = options.number("hostile_seed")
SHARED = 25  # hostile programs of one name
HASHED_EVERY = 40  # reading the source of all of them takes a minute; the others' hashes are their numbers
COUNT = options.number("hostile_programs")

BEHAVIOURS = [*exceptions.plain.list(), *oddities.plain.list()]

# An exit inside a task that the effect has made itself ends asyncio's loop: a limit that the guide names, not fuzzed.
ENDS_THE_LOOP = ("keyboard_interrupt", "system_exit")


def _pairs() -> list[tuple[Place, Behaviour]]:
    places = [*in_reducers.places.found, *in_workflows.places.found, *in_effects.places.found]
    found = [(place, behaviour) for place in places for behaviour in BEHAVIOURS if _fits(place, behaviour)]
    for around in (alone, as_a_child, in_a_shield):
        place = Place(around.__name__, around)
        found += [(place, Behaviour(each.name, _unused, each.kind)) for each in awaits.found.values()]
    random.Random(f"hostile {SEED}").shuffle(found)
    return found


def _fits(place: Place, behaviour: Behaviour) -> bool:
    if place.name == "at_the_door":  # what the client's own code raises is the client's own
        return behaviour.kind in (Kind.ODD, Kind.FINE, Kind.ANY)
    if behaviour.name == "memory_error":  # its worlds are given up, and that takes a while
        return place.name in ("event_handler", "after_an_await", "async_effect")
    return place.name != "task_left_behind" or behaviour.name not in ENDS_THE_LOOP


def _unused() -> None:
    raise AssertionError("an awaited behaviour is not called")


class Part(msgspec.Struct, frozen=True):
    """One pair of a program, and what a client does to bring it about."""

    place: Place
    behaviour: Behaviour
    acts: list[Act]

    @property
    def outside(self) -> bool:
        """Whether the behaviour is in an effect, so that it takes an adapter to bring it about."""
        return self.place in in_effects.places.found and self.place.make is not in_effects.argument_of_an_effect

    @property
    def label(self) -> str:
        return f"{self.behaviour.name} in {self.place.name}"

    @property
    def must_fail(self) -> bool:
        """Whether a judged act may not come out well."""
        kind, place = self.behaviour.kind, self.place
        return (kind is Kind.RAISES and place.shows) or (kind is Kind.ODD and place.stores)

    @property
    def must_hold(self) -> bool:
        """Whether a judged act may not fail: the value is strange, and can be stored."""
        return self.behaviour.kind is Kind.FINE and self.place.stores


class Hostile(msgspec.Struct, frozen=True):
    number: int
    program: wl.Program
    parts: list[Part]

    @property
    def sick(self) -> bool:
        """Whether its steps may be refused, as a full stack is nothing that a journal can say."""
        return any(part.behaviour.kind is Kind.SICK for part in self.parts)

    def __str__(self) -> str:
        labels = ", and ".join(part.label for part in self.parts)
        seed = f"{options.SINGLE}=hostile_seed={SEED} " if SEED != 1 else ""
        return f"program {self.number} ({labels}); alone: {seed}python -m tests.hostile {self.number}"


@functools.cache
def pairs() -> list[tuple[Place, Behaviour]]:
    return _pairs()


@functools.cache
def program(number: int) -> Hostile:
    """The hostile program of this number."""
    return _shared(number // SHARED)[number % SHARED]


@functools.cache
def _shared(group: int) -> list[Hostile]:
    """Some hostile programs under one name. Each has a world of its own, where nothing of the others happens: a host
    looks after every name it knows, and thousands of them would be what is measured.
    """
    app = wl.Program(f"hostile-{group}")
    app.reducer()(making.Answering)
    with quiet:
        made = [_made(app, group * SHARED + index) for index in range(SHARED)]
    if group % HASHED_EVERY:
        app._hash = digest.sha256(f"hostile {SEED}/{group}".encode())
    return made


def _made(app: wl.Program, number: int) -> Hostile:
    chosen = [pairs()[number % len(pairs())]]
    if number % 3 == 2:
        chosen.append(random.Random(f"hostile {SEED}/{number}").choice(pairs()))
    parts: list[Part] = []
    for letter, (place, behaviour) in zip("ab", chosen, strict=False):
        acts = place.make(Making(app, behaviour, quiet.armed(behaviour.do), f"{number}{letter}"))
        parts.append(Part(place, behaviour, acts))
    return Hostile(number, app, parts)


# --- Places for behaviours that are awaited -------------------------------------------------------------------------


def _tools(making: Making) -> awaits.Tools:
    @making.app.workflow(name=making.name("tool"))
    async def child(value: Any) -> Any:
        return value

    @making.app.effect(retry=in_effects.TWICE)
    @making.named
    async def outside(value: Any) -> Any:
        return value

    return awaits.Tools(child, outside)


def alone(making: Making) -> list[Act]:
    tools, do = _tools(making), awaits.found[making.behaviour.name].do

    @making.app.workflow(name=making.name("flow"))
    async def flow() -> Any:
        return await do(tools)

    return [Run(flow(), making.name("r"), judged=True)]


def as_a_child(making: Making) -> list[Act]:
    tools, do = _tools(making), awaits.found[making.behaviour.name].do

    @making.app.workflow(name=making.name("inner"))
    async def inner() -> Any:
        await wl.sleep(0.01)
        return await do(tools)

    @making.app.workflow(name=making.name("flow"))
    async def flow() -> Any:
        return await wl.gather(inner(), tools.child(1))

    return [Run(flow(), making.name("r"), judged=True)]


def in_a_shield(making: Making) -> list[Act]:
    tools, do = _tools(making), awaits.found[making.behaviour.name].do

    @making.app.workflow(name=making.name("flow"))
    async def flow() -> Any:
        async with wl.scope(shield=True):
            try:
                return await do(tools)
            finally:
                await wl.sleep(0.01)

    return [Run(flow(), making.name("r"), judged=True)]
