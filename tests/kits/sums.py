"""A program that adds up, for tests that are about something else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import worldline as wl


@dataclass(frozen=True)
class Add:
    number: int


@dataclass(frozen=True)
class AddUp(wl.Request[int]):
    """The same, and the answer is the sum."""

    number: int


@dataclass(frozen=True)
class Trap:
    """The same, and then its handler does what the test says: dies, or hangs."""

    number: int = 0


def program(name: str = "p", *, trap: Callable[[], None] | None = None) -> wl.Program:
    app = wl.Program(name)

    @app.reducer()
    @dataclass
    class Sum:
        total: int = 0

        @wl.on
        def add(self, event: Add) -> None:
            self.total += event.number

        @wl.on
        def add_up(self, event: AddUp) -> int:
            self.total += event.number
            return self.total

        @wl.on
        def trapped(self, event: Trap) -> None:
            self.total += event.number
            if trap is not None:
                trap()

    return app
