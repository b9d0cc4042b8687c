"""Every option of `tests/options.toml` is used by some test, every use is in the file, and tests read no variable
beside it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests import options
from tests.arch.trees import ROOT, dotted, nodes_of, tree_of

READERS = {"options.number": int, "options.seconds": float, "options.flag": bool}
OPTIONS = options.table(options.FILE.read_text())
# Their own test asks for what is not there.
FILES = [
    path
    for folder in ("tests", "tools", "bench")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path not in (ROOT / "tests" / "options.py", ROOT / "tests" / "test_options.py")
]


def uses(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """How each option is asked for: the reader, and the name. A name that is no text of its own is empty."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Call) and dotted(node.func) in READERS:
            name = node.args[0] if node.args else None
            yield dotted(node.func), str(name.value) if isinstance(name, ast.Constant) else ""


def variables(tree: ast.Module) -> Iterator[str]:
    """The variables of this project that a file reads from the environment by themselves."""
    for node in nodes_of(tree):
        key = None
        if isinstance(node, ast.Call) and dotted(node.func) in ("os.environ.get", "os.getenv") and node.args:
            key = node.args[0]
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and dotted(node.value) == "os.environ":
            key = node.slice
        if isinstance(key, ast.Constant) and str(key.value).startswith("WORLDLINE_"):
            yield str(key.value)


USED = [(path.relative_to(ROOT).as_posix(), *use) for path in FILES for use in uses(tree_of(path))]


def test_every_use_is_in_the_file_with_its_type() -> None:
    wrong = [
        (file, reader, name)
        for file, reader, name in USED
        if name not in OPTIONS or type(OPTIONS[name].default) is not READERS[reader]
    ]
    assert wrong == []


def test_every_option_is_used() -> None:
    used = {name for _, _, name in USED}
    assert [name for name in OPTIONS if name not in used] == []


def test_every_option_says_what_it_does_in_one_line() -> None:
    for name, option in OPTIONS.items():
        assert type(option.default) is type(option.soak), name
        assert option.what.strip(), name
        assert "\n" not in option.what, name


def test_tests_read_no_variable_beside_the_options() -> None:
    found = {path.relative_to(ROOT).as_posix(): list(variables(tree_of(path))) for path in FILES}
    # What it gives to the tests that it starts, it adds to what was given to itself.
    assert found.pop("tools/mutate_rules.py") == [options.SINGLE]
    assert {file: names for file, names in found.items() if names} == {}, "add an option to tests/options.toml"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("os.environ.get('WORLDLINE_SEEDS', '5')", ["WORLDLINE_SEEDS"]),
        ("os.getenv('WORLDLINE_SEEDS')", ["WORLDLINE_SEEDS"]),
        ("os.environ['WORLDLINE_SEEDS']", ["WORLDLINE_SEEDS"]),
        ("os.environ['HOME'], os.environ.get(name), {'env': {'WORLDLINE_STORE': 'x'}}", []),
    ],
)
def test_the_rule_bites(text: str, expected: list[str]) -> None:
    assert list(variables(ast.parse(text))) == expected


def test_a_name_that_is_put_together_is_no_use() -> None:
    assert list(uses(ast.parse("options.number(f'seeds_{x}'), options.flag('every_crash')"))) == [
        ("options.number", ""),
        ("options.flag", "every_crash"),
    ]
