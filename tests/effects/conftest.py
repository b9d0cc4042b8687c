"""One `kit` for each engine."""

from __future__ import annotations

from tests.kits.fixtures import kit, lmdb_kit, memory_kit, postgres_kit

__all__ = ["kit", "lmdb_kit", "memory_kit", "postgres_kit"]
