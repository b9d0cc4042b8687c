"""The shape of the tree: small classes, folders that can be taken in at a glance, and no hidden imports."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.arch.trees import SOURCE, dotted, name_of, nodes_of, sources, tree_of

CLASS_LINES_MAX = 299
FOLDER_FILES_MAX = 16


def long_classes(path: Path, tree: ast.Module) -> list[str]:
    return [
        f"{name_of(path)}: {node.name}"
        for node in nodes_of(tree)
        if isinstance(node, ast.ClassDef) and (node.end_lineno or node.lineno) - node.lineno + 1 > CLASS_LINES_MAX
    ]


def hides_imports(tree: ast.Module) -> bool:
    named = [dotted(node) for node in nodes_of(tree) if isinstance(node, ast.Name | ast.Attribute)]
    imported = [
        alias.name for node in nodes_of(tree) if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names
    ]
    return "TYPE_CHECKING" in imported or any(name.split(".")[-1] == "TYPE_CHECKING" for name in named)


def modules_in(folder: Path) -> list[str]:
    """The modules of a folder. What a package or a command consists of is not its `__init__`."""
    return sorted(path.name for path in folder.glob("*.py") if not path.stem.startswith("__"))


FOLDERS = sorted({path.parent for path in sources()})


@pytest.mark.parametrize("path", sources(), ids=name_of)
def test_classes_are_small(path: Path) -> None:
    assert long_classes(path, tree_of(path)) == [], f"over {CLASS_LINES_MAX} lines; split it by meaning"


@pytest.mark.parametrize("path", sources(), ids=name_of)
def test_no_import_is_hidden(path: Path) -> None:
    assert not hides_imports(tree_of(path)), "an import for the type checker alone hides a cycle; move what both need"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.relative_to(SOURCE.parent).as_posix())
def test_a_folder_holds_few_modules(folder: Path) -> None:
    assert len(modules_in(folder)) <= FOLDER_FILES_MAX, "more of them is a missing folder"


def test_each_rule_bites() -> None:
    path = SOURCE / "sample.py"
    assert long_classes(path, ast.parse("class A:\n" + "    x = 1\n" * CLASS_LINES_MAX)) == ["sample.py: A"]
    assert long_classes(path, ast.parse("class A:\n" + "    x = 1\n" * (CLASS_LINES_MAX - 1))) == []
    assert hides_imports(ast.parse("from typing import TYPE_CHECKING"))
    assert hides_imports(ast.parse("import typing\nif typing.TYPE_CHECKING:\n    import x"))
    assert not hides_imports(ast.parse("import typing"))
