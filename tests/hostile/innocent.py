"""The program of the worlds that do nothing wrong, and must not notice what others do."""

from __future__ import annotations

from dataclasses import dataclass

import worldline as wl

app = wl.Program("innocent")

WORLDS = 20


def name(number: int) -> str:
    return f"innocent-{number}"


@dataclass(frozen=True)
class Add(wl.Request[int]):
    number: int


@app.reducer()
@dataclass
class Counter:
    total: int = 0

    @wl.on
    def add(self, event: Add) -> int:
        self.total += event.number
        return self.total
