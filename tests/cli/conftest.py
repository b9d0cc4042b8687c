"""Stocked stores, made once and copied for each test that changes one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli import cli_kit


@pytest.fixture(scope="session")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with worlds in all kinds of states, hosted by nobody. Not to be changed."""
    store = tmp_path_factory.mktemp("stocked") / "store"
    cli_kit.stock(str(store))
    return store


@pytest.fixture
def store(stocked: Path, tmp_path: Path) -> Path:
    """A stocked store of the test's own."""
    return cli_kit.copy(stocked, tmp_path / "store")
