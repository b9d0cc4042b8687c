"""One `kit` for each engine."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from tests.conformance import kits
from tests.kits import kit as role_kits
from tests.servers import postgres

ENGINES = ["memory", "lmdb", "postgres"]

_SCHEMAS = itertools.count()


def make(engine: str, folder: Path) -> role_kits.Kit:
    env = role_kits.Env()
    if engine == "memory":
        store = kits.memory_kit(env)
    elif engine == "lmdb":
        store = kits.placed_kit(kits.Place("lmdb", str(folder / "store")), env)
    else:
        schema = f"roles_{os.getpid()}_{next(_SCHEMAS)}"
        store = kits.placed_kit(kits.Place("postgres", postgres.shared().url(schema=schema)), env)
    return role_kits.Kit(engine, store, env, folder)


@pytest.fixture(params=ENGINES)
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> role_kits.Kit:
    return make(request.param, tmp_path)


@pytest.fixture
def memory_kit(tmp_path: Path) -> role_kits.Kit:
    return make("memory", tmp_path)


@pytest.fixture
def lmdb_kit(tmp_path: Path) -> role_kits.Kit:
    return make("lmdb", tmp_path)


@pytest.fixture
def postgres_kit(tmp_path: Path) -> role_kits.Kit:
    return make("postgres", tmp_path)
