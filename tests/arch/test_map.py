"""ARCHITECTURE.md names every folder that is there and docs/code-map.md every file, no other; every test that the
invariants name is there, and docs/invariants.md has the same invariants with all their tests.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "worldline"
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
CODE_MAP = (ROOT / "docs" / "code-map.md").read_text()
INVARIANTS = (ROOT / "docs" / "invariants.md").read_text()
LINES_MAX = 250
INVARIANTS_MIN = 52  # none is dropped to make the page shorter

_FOLDER = re.compile(r"^\*\*(?P<folder>[\w/]+)/\*\*", re.MULTILINE)
_FILE = re.compile(r"`(\w+\.py)`")
_ROW = re.compile(r"^\| (?P<folders>`[^|]*/`) \| (?P<what>[^|]+) \|$", re.MULTILINE)
_TEST = re.compile(r"`(tests/[\w/]+\.py)`")


def code_map() -> dict[str, list[str]]:
    """The files that the code map names, by folder."""
    found = list(_FOLDER.finditer(CODE_MAP))
    ends = [each.start() for each in found[1:]] + [len(CODE_MAP)]
    return {each["folder"]: _FILE.findall(CODE_MAP[each.end() : end]) for each, end in zip(found, ends, strict=True)}


def folders() -> list[str]:
    """The folders that ARCHITECTURE.md names."""
    return [name.strip("`/ ") for row in _ROW.finditer(TEXT) for name in row["folders"].split(",")]


def files() -> dict[str, list[str]]:
    """The files that there are, by folder. What a package or a command consists of is not its `__init__`."""
    found: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        if not path.stem.startswith("__"):
            found.setdefault(str(path.parent.relative_to(SOURCE)), []).append(path.name)
    return found


FILES = files()


@pytest.mark.parametrize("folder", FILES)
def test_every_file_is_on_the_map(folder: str) -> None:
    named, there = code_map().get(folder, []), FILES[folder]
    assert [name for name in there if name not in named] == [], "say what it is for in docs/code-map.md"
    assert [name for name in named if name not in there] == [], "take it out of docs/code-map.md"
    assert [name for name in there if named.count(name) > 1] == []


def test_every_folder_is_and_no_other() -> None:
    assert [folder for folder in code_map() if folder not in FILES] == []
    assert sorted(folders()) == sorted(FILES), "the code map of ARCHITECTURE.md"


def numbered(text: str) -> dict[int, str]:
    """Numbered statements, each with what stands up to the next of them."""
    parts = re.split(r"^(\d+)\. ", text, flags=re.MULTILINE)[1:]
    assert [int(each) for each in parts[::2]] == list(range(1, len(parts) // 2 + 1))
    return {int(number): said for number, said in zip(parts[::2], parts[1::2], strict=True)}


def invariants() -> dict[int, str]:
    return numbered(TEXT.split("## Invariants")[1].split("\n## ")[0])


def statement(said: str) -> str:
    """What is in bold first."""
    found = re.match(r"\*\*(.+?)\*\*", said, re.DOTALL)
    assert found is not None, f"an invariant begins with its statement in bold: {said[:40]!r}"
    return " ".join(found[1].split()).rstrip(".")


@pytest.mark.parametrize("text", [TEXT, INVARIANTS], ids=["ARCHITECTURE.md", "docs/invariants.md"])
def test_every_test_that_is_named_is_there(text: str) -> None:
    named = _TEST.findall(text)
    assert len(named) > 30
    assert [each for each in named if not (ROOT / each).is_file()] == []


def test_every_invariant_names_its_keeper() -> None:
    assert len(invariants()) >= INVARIANTS_MIN
    assert [number for number, each in invariants().items() if not _TEST.search(each)] == []


def test_both_pages_have_the_same_invariants() -> None:
    short, whole = invariants(), numbered(INVARIANTS)
    assert {number: statement(each) for number, each in short.items()} == {
        number: statement(each) for number, each in whole.items()
    }
    missing = {
        number: [test for test in _TEST.findall(each) if test not in whole[number]] for number, each in short.items()
    }
    assert {number: tests for number, tests in missing.items() if tests} == {}, "name them in docs/invariants.md, too"


def test_it_stays_readable() -> None:
    assert len(TEXT.splitlines()) <= LINES_MAX
    lines = [*TEXT.splitlines(), *CODE_MAP.splitlines(), *INVARIANTS.splitlines()]
    assert [line for line in lines if len(line) > 124 and not line.startswith("|")] == []
