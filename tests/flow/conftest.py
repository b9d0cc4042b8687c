"""Desks for the contract suite: every kind of host, over any document."""

from __future__ import annotations

from typing import Any

import pytest

from tests.flow import hosts, world_desks

KINDS: dict[str, Any] = {"standalone": hosts.Standalone, "test world": world_desks.InTestWorld}


class Desks:
    """Makes desks of one kind, and closes them when the test ends."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._made: list[Any] = []

    def __call__(self, document: Any, handlers: hosts.Handlers | None = None, **options: Any) -> Any:
        self._made.append(KINDS[self._kind](document, handlers or {}, **options))
        return self._made[-1]

    async def aclose(self) -> None:
        for each in self._made:
            await each.close()


@pytest.fixture(params=list(KINDS))
def open_desk(request: pytest.FixtureRequest) -> Desks:
    """Every kind of host."""
    return Desks(request.param)


@pytest.fixture
def open_alone() -> Desks:
    """The standalone host: for what is injected into it, its runners, and its handlers of Python objects."""
    return Desks("standalone")
