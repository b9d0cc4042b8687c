"""The stocked stores of the command line's tests, and the processes of those of the roles."""

from __future__ import annotations

from tests.cli.conftest import stocked, store
from tests.kits.fixtures import kit, memory_kit

__all__ = ["kit", "memory_kit", "stocked", "store"]
