"""One `kit` for each engine; the PostgreSQL server is started once, by the first case that wants it."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from tests.conformance import kits, sealed
from tests.servers import postgres
from worldline.base import env_os

ENGINES = ["memory", "lmdb", "postgres", "sealed-memory", "restless-memory", "sealed-lmdb", "sealed-postgres"]
DURABLE = ["lmdb", "postgres", "sealed-lmdb", "sealed-postgres"]

_SCHEMAS = itertools.count()


def _kit(engine: str, folder: Path) -> kits.Kit:
    env = env_os.OsEnv()
    match engine:
        case "memory":
            return kits.memory_kit(env)
        case "sealed-memory":
            return kits.memory_kit(env, sealed.FixedVault())
        case "restless-memory":
            return kits.memory_kit(env, sealed.RestlessVault())
        case "lmdb" | "sealed-lmdb":
            return kits.placed_kit(kits.Place(engine, str(folder / "store")), env)
        case _:
            return kits.placed_kit(_postgres_place(engine), env)


def _postgres_place(engine: str = "postgres") -> kits.Place:
    """A schema is a store of its own, and much quicker made than a database."""
    schema = f"store_{os.getpid()}_{next(_SCHEMAS)}"
    return kits.Place(engine, postgres.shared().url(schema=schema))


@pytest.fixture(params=ENGINES)
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> kits.Kit:
    return _kit(request.param, tmp_path)


@pytest.fixture(params=DURABLE)
def durable_kit(request: pytest.FixtureRequest, tmp_path: Path) -> kits.Kit:
    """Only the engines whose store outlives the process."""
    return _kit(request.param, tmp_path)


@pytest.fixture
def postgres_place() -> kits.Place:
    return _postgres_place()
