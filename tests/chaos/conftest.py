"""The nursery that processes are forked off: one for each test process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos import processes


@pytest.fixture(scope="session")
def nursery() -> Iterator[processes.Nursery]:
    made = processes.Nursery()
    yield made
    made.close()
