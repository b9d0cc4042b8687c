"""The public names of the package are loaded when they are used; `__init__.pyi` says the same to type checkers."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

import worldline as wl
from tests.arch.trees import SOURCE

STUB = ast.parse((SOURCE / "__init__.pyi").read_text())
DRIVERS = ("lmdb", "asyncpg", "obstore", "cbrrr", "zstandard", "httpx", "asyncio", "rich", "click")


def imported() -> dict[str, tuple[str, str]]:
    """What the stub imports: the public name, the module, the name there."""
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in STUB.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_the_stub_imports_each_name_from_the_same_place() -> None:
    assert imported() == wl._PLACES  # type: ignore[attr-defined]


def test_the_stub_exports_the_same_names() -> None:
    exported = next(ast.literal_eval(node.value) for node in STUB.body if isinstance(node, ast.Assign))
    assert exported == wl.__all__ == sorted(imported())


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'opne'"):
        wl.opne  # type: ignore[attr-defined]  # noqa: B018
    assert "open" in dir(wl)


def loaded_by(statement: str) -> list[str]:
    """The modules of a fresh interpreter after a statement."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{statement}\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.split()


@pytest.mark.parametrize("statement", ["import worldline", "import worldline.flow_core.core"])
def test_no_driver_is_loaded(statement: str) -> None:
    loaded = loaded_by(statement)
    assert [name for name in DRIVERS if name in loaded] == []


def test_the_standalone_host_loads_no_storage_driver() -> None:
    loaded = loaded_by("import worldline.flow")
    assert [
        name for name in ("lmdb", "asyncpg", "obstore", "worldline.store", "worldline.runtime") if name in loaded
    ] == []


def test_a_driver_that_is_loaded_would_be_seen() -> None:
    assert "lmdb" in loaded_by("import worldline\nworldline.open")
