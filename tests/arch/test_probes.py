"""Every probe of a rare branch (STYLE, rule 20) has a name of its own, and a test that says it takes the branch."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.arch.trees import ROOT, dotted, name_of, nodes_of, sources, tree_of

_NAME = re.compile(r"[a-z0-9]+\.[a-z]+(-[a-z]+)+")
PROBES_MIN = 15


def named(path: Path, called: str) -> Iterator[str]:
    """The texts that calls of something are given. What is no text is named by its line."""
    for node in nodes_of(tree_of(path)) if called in path.read_text() else ():
        if isinstance(node, ast.Call) and dotted(node.func) == called:
            for each in node.args:
                yield str(each.value) if isinstance(each, ast.Constant) else f"not a text, line {node.lineno}"


PROBES = [name for path in sources() for name in named(path, "probes.hit")]
TESTS = [
    path for path in sorted((ROOT / "tests").rglob("*.py")) if path != ROOT / "tests" / "base" / "test_probe_marks.py"
]
MARKED = [name for path in TESTS for name in named(path, "pytest.mark.probe")]


def test_every_probe_has_a_name_of_its_own() -> None:
    assert [name for name, count in Counter(PROBES).items() if count > 1] == []
    assert [name for name in PROBES if not _NAME.fullmatch(name)] == [], "the component, a dot, what happened"
    assert len(PROBES) >= PROBES_MIN


def test_every_probe_is_taken_by_a_named_test() -> None:
    assert [name for name in PROBES if name not in MARKED] == [], "mark a test with @pytest.mark.probe(name)"


def test_no_test_names_a_probe_that_is_gone() -> None:
    assert [name for name in MARKED if name not in PROBES] == []


def test_probes_are_only_hit() -> None:
    """No code reads what was hit: a probe decides nothing."""
    used = [
        f"{name_of(path)}: {dotted(node)}"
        for path in sources()
        if "probes." in path.read_text()
        for node in nodes_of(tree_of(path))
        if isinstance(node, ast.Attribute) and dotted(node).startswith("probes.") and dotted(node) != "probes.hit"
    ]
    assert used == []
