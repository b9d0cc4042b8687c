"""The shape of the tree: no hidden imports."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.arch.trees import dotted, name_of, nodes_of, sources, tree_of


def hides_imports(tree: ast.Module) -> bool:
    named = [dotted(node) for node in nodes_of(tree) if isinstance(node, ast.Name | ast.Attribute)]
    imported = [
        alias.name for node in nodes_of(tree) if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names
    ]
    return "TYPE_CHECKING" in imported or any(name.split(".")[-1] == "TYPE_CHECKING" for name in named)


@pytest.mark.parametrize("path", sources(), ids=name_of)
def test_no_import_is_hidden(path: Path) -> None:
    assert not hides_imports(tree_of(path)), "an import for the type checker alone hides a cycle; move what both need"


def test_each_rule_bites() -> None:
    assert hides_imports(ast.parse("from typing import TYPE_CHECKING"))
    assert hides_imports(ast.parse("import typing\nif typing.TYPE_CHECKING:\n    import x"))
    assert not hides_imports(ast.parse("import typing"))
