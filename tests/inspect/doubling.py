"""`tests.kits.sums`, but every number counts twice: code that did not write the journals of the other."""

from __future__ import annotations

from dataclasses import dataclass

import worldline as wl
from tests.kits.sums import Add


def program() -> wl.Program:
    app = wl.Program("p")

    @app.reducer()
    @dataclass
    class Sum:
        total: int = 0

        @wl.on
        def add(self, event: Add) -> None:
            self.total += event.number * 2

    return app
