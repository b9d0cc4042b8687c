"""The parts that hostile programs are made of: a place is a function that declares code around a behaviour.

It returns the acts by which a client brings the world there. `shows`: what the behaviour raises must be seen as a
failure of a judged act. `stores`: what it returns is stored, so a value that cannot be must be seen too.
`blocks`: a run there may be blocked, which is what becomes of one whose recorded arguments or answers its code cannot
read, or its effect parked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

import worldline as wl
from tests.hostile.behaviours import Behaviour
from worldline.kernel import user_values

Do = Callable[[], Any]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Ping(wl.Request[int]):
    """Every hostile program answers it, whatever happened before."""


@dataclass
class Answering:
    pings: int = 0

    @wl.on
    def ping(self, event: Ping) -> int:
        self.pings += 1
        return self.pings


class Send(msgspec.Struct, frozen=True):
    """An event. `to`: the run it is for."""

    schema: str
    data: bytes
    judged: bool = False
    to: str | None = None


class Ask(msgspec.Struct, frozen=True):
    schema: str
    data: bytes
    judged: bool = False


class Run(msgspec.Struct, frozen=True):
    """A run, waited for unless it is only `begun`."""

    call: Any
    id: str
    judged: bool = False
    begun: bool = False


class Cancel(msgspec.Struct, frozen=True):
    """A run that was begun is cancelled, and its end is waited for unless it may have none."""

    id: str
    ends: bool = True
    judged: bool = False


class Door(msgspec.Struct, frozen=True):
    """A value that a client hands over itself: an argument of a run, an event. It must be refused or taken."""

    make: Any
    judged: bool = True


Act = Send | Ask | Run | Cancel | Door


class Making:
    """One behaviour that is put into a program. `tag` keeps the names of several apart."""

    def __init__(self, app: wl.Program, behaviour: Behaviour, do: Do, tag: str) -> None:
        self.app = app
        self.behaviour = behaviour
        self.do = do
        self.tag = tag

    def name(self, name: str) -> str:
        return f"{name}{self.tag}"

    def named(self, function: F) -> F:
        """Give a function that becomes an effect a name of its own."""
        function.__name__ = self.name(function.__name__)
        return function


def send(event: object, *, judged: bool = False, to: str | None = None) -> Send:
    return Send(user_values.schema_name(type(event)), user_values.dump(event), judged, to)


def ask(request: wl.Request[Any], *, judged: bool = False) -> Ask:
    return Ask(user_values.schema_name(type(request)), user_values.dump(request), judged)


class Place(msgspec.Struct, frozen=True):
    name: str
    make: Callable[[Making], list[Act]]
    shows: bool = True
    stores: bool = True
    blocks: bool = False


class Places:
    def __init__(self) -> None:
        self.found: list[Place] = []

    def add(
        self, *, shows: bool = True, stores: bool = True, blocks: bool = False
    ) -> Callable[[Callable[[Making], list[Act]]], Callable[[Making], list[Act]]]:
        def take(make: Callable[[Making], list[Act]]) -> Callable[[Making], list[Act]]:
            self.found.append(Place(make.__name__, make, shows, stores, blocks))
            return make

        return take
