"""One `kit` for each engine, as the tests of the roles have it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kits.fixtures import lmdb_kit, memory_kit
from tests.servers import postgres

__all__ = ["lmdb_kit", "memory_kit"]


@pytest.fixture(params=["lmdb", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store that is not there yet."""
    if request.param == "lmdb":
        return str(tmp_path / "store")
    return postgres.shared().url(schema=f"encrypted_{tmp_path.name.replace('-', '_')}")
