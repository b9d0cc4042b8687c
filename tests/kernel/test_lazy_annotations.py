"""Python 3.14: annotations without quotes that name what is defined below, or never.

Modules of these tests have no `from __future__ import annotations`: on older versions they cannot be imported.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import worldline as wl
from worldline import testing
from worldline.base import call_signatures

LAZY = sys.version_info >= (3, 14)
BELOW = """
@dataclass
class Below:
    number: int
"""
PROGRAM = """
from dataclasses import dataclass
from typing import TYPE_CHECKING
import worldline as wl

if TYPE_CHECKING:
    from decimal import Decimal

app = wl.Program("lazy")
{above}
@app.resource
async def pool():
    yield 1

@app.workflow
async def more(given: Below) -> Below:
    return Below(await asked(given) + Helper().one())

@app.effect
async def asked(given: Below, *, by: Decimal = wl.use(pool)) -> int:
    return given.number

class Helper:
    never: Decimal

    def one(self) -> int:
        return 1

@app.reducer
@dataclass
class Cell:
    total: int = 0

    @wl.on
    def take(self, event: Below) -> None:
        self.total += event.number
{below}
"""


def load(folder: Path, **where: str) -> ModuleType:
    file = folder / "lazy_program.py"
    file.write_text(PROGRAM.format(**{"above": "", "below": "", **where}))
    spec = importlib.util.spec_from_file_location("lazy_program", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["lazy_program"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    if not LAZY:
        pytest.skip("annotations are evaluated where they stand")
    try:
        yield tmp_path
    finally:
        del sys.modules["lazy_program"]


def test_declarations_stand_above_their_types(folder: Path) -> None:
    lazy: Any = load(folder, below=BELOW)
    with testing.world(lazy.app, wl.Script().on(lazy.asked, 4)) as world:
        assert world.run(lazy.more(lazy.Below(1))) == lazy.Below(5)
        world.send(lazy.Below(3))
        assert world.state(lazy.Cell).total == 3
        world.prove()


def test_where_a_type_stands_does_not_change_the_program(folder: Path) -> None:
    hashes = [load(folder, **{where: BELOW}).app.hash for where in ("above", "below")]
    assert hashes[0] == hashes[1]


def test_signatures_and_annotations_are_those_of_the_code() -> None:
    def function(number: int, *, name: str = "") -> bool:
        return bool(number and name)

    assert list(call_signatures.of(function).parameters) == ["number", "name"]
    assert list(call_signatures.annotations_of(function)) == ["number", "name", "return"]
    assert call_signatures.annotations_of(type("Empty", (), {})) == {}
