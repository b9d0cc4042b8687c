"""What hostile code does where it is called: it raises something strange, or returns something strange.

A behaviour is a function without arguments. Its kind says what must become of it where its result would be stored:
`RAISES` and `ODD` (a value that cannot be stored) must end as failures, `FINE` (strange, and storable) may not, and of
`ANY` nothing is asked but an end. `SICK` is what the environment does to code, not code to itself: a full stack or no
memory. A step that meets it may be refused, and is no part of a journal that could be replayed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

F = TypeVar("F", bound=Callable[..., Any])


class Kind(enum.Enum):
    RAISES = "raises"
    ODD = "odd"
    FINE = "fine"
    ANY = "any"
    SICK = "sick"


class Behaviour(msgspec.Struct, frozen=True):
    name: str
    do: Callable[[], Any]
    kind: Kind
    replays: bool = True  # whether it does the same in another process


class Switch:
    """Whether behaviours misbehave. Off while programs are declared and inputs are made, which runs their code too."""

    def __init__(self) -> None:
        self._on = True

    def armed(self, do: Callable[[], Any]) -> Callable[[], Any]:
        def perhaps() -> Any:
            return do() if self._on else 0

        perhaps.__name__ = do.__name__
        return perhaps

    def __enter__(self) -> None:
        self._on = False

    def __exit__(self, *_: object) -> None:
        self._on = True


quiet = Switch()


class Registry:
    """Behaviours by name, in the order of their definition."""

    def __init__(self) -> None:
        self.found: dict[str, Behaviour] = {}

    def add(self, kind: Kind, *, replays: bool = True) -> Callable[[F], F]:
        def take(do: F) -> F:
            name = do.__name__
            assert name not in self.found, f"two behaviours are named {name}"
            self.found[name] = Behaviour(name, do, kind, replays)
            return do

        return take

    def table(self, kind: Kind, made: dict[str, Callable[[], Any]]) -> None:
        """Behaviours of one expression each."""
        for name, do in made.items():
            do.__name__ = name
            self.add(kind)(do)

    def list(self) -> list[Behaviour]:
        return list(self.found.values())
