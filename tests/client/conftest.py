"""One `kit` for each engine, as the tests of the roles have it."""

from __future__ import annotations

from tests.kits.fixtures import kit, lmdb_kit, memory_kit

__all__ = ["kit", "lmdb_kit", "memory_kit"]
