"""One `kit` for each engine, and the stocked stores of the command line's tests."""

from __future__ import annotations

from tests.cli.conftest import stocked, store
from tests.kits.fixtures import kit, lmdb_kit, memory_kit, postgres_kit

__all__ = ["kit", "lmdb_kit", "memory_kit", "postgres_kit", "stocked", "store"]
