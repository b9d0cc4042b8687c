"""Desks for the contract suite: every kind of host, over any document."""

from __future__ import annotations

from typing import Any

import pytest

from tests.flow import hosts


class Desks:
    """Makes desks of one kind, and closes them when the test ends."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._made: list[hosts.Standalone] = []

    def __call__(self, document: Any, handlers: hosts.Handlers | None = None, **options: Any) -> hosts.Standalone:
        self._made.append(hosts.KINDS[self._kind](document, handlers or {}, **options))
        return self._made[-1]

    async def aclose(self) -> None:
        for each in self._made:
            await each.close()


@pytest.fixture(params=list(hosts.KINDS))
def open_desk(request: pytest.FixtureRequest) -> Desks:
    return Desks(request.param)
