"""The stocked stores of the command line's tests."""

from __future__ import annotations

from tests.cli.conftest import stocked, store

__all__ = ["stocked", "store"]
