"""The core imports no feature, and features import each other only as named; ARCHITECTURE.md has every seam.

The linter checks the contracts of `pyproject.toml`. What is held here: that these contracts have no way around them.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.arch.trees import ROOT, SOURCE, name_of, nodes_of, sources, tree_of
from worldline.host.feature_list import FEATURES
from worldline.runtime.feature import Feature

LAYERED = "layered, and every package has a place"
APART = "features apart, except as named"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONTRACTS: dict[str, dict[str, Any]] = {each["name"]: each for each in PROJECT["tool"]["importlinter"]["contracts"]}
SEAMS = (ROOT / "ARCHITECTURE.md").read_text().split("\n## Seams\n")[1].split("\n## ")[0]

_NAMED = re.compile(r"worldline\.features\.(\w+)\.\*\* -> worldline\.features\.(\w+)\.\*\*")
_FEATURE = re.compile(r"worldline\.features(?:\.(\w+))?")
_FILE = re.compile(r"`([\w/]+\.py)`")


def core() -> tuple[str, ...]:
    """The folders below the features."""
    layers: list[str] = CONTRACTS[LAYERED]["layers"]
    return tuple(name for layer in layers[layers.index("features") + 1 :] for name in layer.split(" | "))


def imported(tree: ast.AST) -> Iterator[str]:
    """The modules that a file imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def features_of(tree: ast.AST) -> set[str]:
    """The features that a file imports; empty text where it imports all of them as one package."""
    return {found[1] or "" for name in imported(tree) if (found := _FEATURE.match(name))}


def pairs() -> list[tuple[str, str]]:
    named = [_NAMED.fullmatch(each) for each in CONTRACTS[APART]["ignore_imports"]]
    assert all(named), "a pair is two features, each as a whole"
    return [(each[1], each[2]) for each in named if each is not None]


def test_no_import_is_excepted_from_the_layers() -> None:
    layered = CONTRACTS[LAYERED]
    assert layered["exhaustive"]
    assert not layered.keys() & {"ignore_imports", "unmatched_ignore_imports_alerting"}
    assert {"runtime", "kernel", "inspect", "client", "worker"} < {*core()}


@pytest.mark.parametrize("folder", core())
def test_the_core_imports_no_feature(folder: str) -> None:
    files = [path for path in sources() if name_of(path).startswith(f"{folder}/")]
    assert files
    assert {name_of(path): found for path in files if (found := features_of(tree_of(path)))} == {}


def test_features_import_each_other_as_named_and_every_pair_is_needed() -> None:
    found = set()
    for path in sources():
        folder, _, rest = name_of(path).partition("/")
        if folder == "features" and "/" in rest:
            own = rest.split("/")[0]
            found |= {(own, other) for other in features_of(tree_of(path)) - {own}}
    assert sorted(found) == sorted(pairs())


def test_every_pair_has_its_reason() -> None:
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    assert [line for line in lines if _NAMED.search(line) and "  # " not in line] == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("def f():\n    from worldline.features.forks import calls", {"forks"}),
        ("import worldline.features.quotas.job", {"quotas"}),
        ("from worldline.features import diff", {"diff"}),
        ("from worldline.runtime.feature import Feature", set()),
    ],
)
def test_an_import_of_a_feature_is_found(text: str, names: set[str]) -> None:
    assert features_of(ast.parse(text)) == names


def test_every_feature_is_on_the_list_once() -> None:
    folders = sorted(path.parent.name for path in SOURCE.glob("features/*/feature.py"))
    assert sorted(each.name for each in FEATURES) == folders
    assert folders == sorted(path.parent.name for path in SOURCE.glob("features/*/__init__.py"))


def test_the_architecture_has_a_line_for_every_seam() -> None:
    lines = [line for line in SEAMS.splitlines() if line.startswith("| `")]
    fields = [field for line in lines for field in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert sorted(fields) == sorted({*Feature.__struct_fields__} - {"name"})
    for line in lines:
        *_, asks, _, where, _ = line.split("|")
        assert _FILE.findall(asks), f"who asks? {line}"
        assert [each for each in _FILE.findall(where) if not Path(SOURCE / each).is_file()] == []


def test_a_seam_is_asked_by_the_files_that_are_named() -> None:
    """Each field is read in a file that the table names."""
    files = {name for line in SEAMS.splitlines() if line.startswith("| `") for name in _FILE.findall(line)}
    assert len(files) > 15
    read = {
        node.attr
        for name in files
        for node in nodes_of(tree_of(SOURCE / name))
        if isinstance(node, ast.Attribute) and node.attr in Feature.__struct_fields__
    }
    assert {*Feature.__struct_fields__} - {"name"} <= read
