"""The pytest plugin: a fixture that makes worlds, and the tail of their journals beside every failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from worldline.base import grammar
from worldline.testing import tested_world
from worldline.testing.tested_world import TestWorld

_WORLDS: pytest.StashKey[list[TestWorld]] = pytest.StashKey()
_TAIL_ENTRIES = 25


@pytest.fixture
def worldline_world() -> Iterator[Callable[..., TestWorld]]:
    """`worldline_world(program, script=None, **options)`: a world that is closed when the test ends."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(tested_world.world(*args, **options))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Remember the worlds that this test makes, however it makes them."""
    made: list[TestWorld] = []
    item.stash[_WORLDS] = made
    # For the whole protocol, and not by a fixture: worlds that a test makes without the fixture are shown as well.
    tested_world.listeners.append(made.append)
    try:
        yield
    finally:
        tested_world.listeners.remove(made.append)
        made.clear()  # the report has been written: the worlds can be collected


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[Any]:
    outcome: Any = yield
    report = outcome.get_result()
    if report.failed:
        for made in item.stash.get(_WORLDS, []):
            title = f"journal of world {made.name!r} ({grammar.count(made.head.height, 'entry')})"
            report.sections.append((title, made.tail(_TAIL_ENTRIES)))
