"""Desks for the contract suite: every kind of host, over any document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.flow import hosts, stored_desks, world_desks
from tests.kits import fixtures as engines

VIRTUAL: dict[str, Any] = {"standalone": hosts.Standalone, "test world": world_desks.InTestWorld}
STORED = ["lmdb", "postgres"]


class Desks:
    """Makes desks of one kind, and closes them when the test ends."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind = kind
        self._folder = folder
        self._made: list[Any] = []

    def __call__(self, document: Any, handlers: hosts.Handlers | None = None, **options: Any) -> Any:
        self._made.append(self._make(document, handlers or {}, **options))
        return self._made[-1]

    def _make(self, document: Any, handlers: hosts.Handlers, **options: Any) -> Any:
        if self._kind in VIRTUAL:
            return VIRTUAL[self._kind](document, handlers, **options)
        folder = self._folder / str(len(self._made))
        folder.mkdir()
        return stored_desks.InStore(engines.make(self._kind, folder), document, handlers, **options)

    async def aclose(self) -> None:
        for each in reversed(self._made):
            await each.close()


@pytest.fixture(params=[*VIRTUAL, *STORED])
def open_desk(request: pytest.FixtureRequest, tmp_path: Path) -> Desks:
    """Every kind of host."""
    return Desks(request.param, tmp_path)


@pytest.fixture(params=list(VIRTUAL))
def open_timed(request: pytest.FixtureRequest, tmp_path: Path) -> Desks:
    """Those whose clock and answers a test decides."""
    return Desks(request.param, tmp_path)


@pytest.fixture
def open_alone(tmp_path: Path) -> Desks:
    """The standalone host: for what is injected into it, its runners, and its handlers of Python objects."""
    return Desks("standalone", tmp_path)
