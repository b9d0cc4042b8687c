"""Numbers and names in sentences, and that messages use them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import worldline
from worldline.base import grammar

SOURCE = Path(worldline.__file__).parent
# What a person reads there is counted by `grammar.count`, never by hand.
FOLDERS = (
    "api",
    "base",
    "cli",
    "client",
    "cluster",
    "effects",
    "features",
    "flow",
    "flow_core",
    "host",
    "inspect",
    "kernel",
    "observe",
    "runtime",
    "terminal",
    "testing",
    "timers",
    "worker",
)
NOUNS = (
    "answers|anchors|attempts|backups|blobs|calls|cells|claims|copies|effects|entries|erasures|events|fields|files|"
    "findings|forks|frames|inputs|items|keys|letters|lines|lookups|messages|operations|processes|runs|schedules|seeds|"
    "segments|snapshots|steps|threads|timers|universes|uploads|values|workers|worlds"
)
_COUNTED = re.compile(rf" (?:(?:dead|live|more|open|unread|other) )?(?:{NOUNS})\b(?! itself)")
_ARTICLE = re.compile(r"\b[Aa]n? $")
_SUSPECT = re.compile(rf"\}} (?:[a-z]+ )?(?:{NOUNS})\b|\b[Aa]n? \{{")  # other files need not be parsed


@pytest.mark.parametrize(
    ("number", "noun", "said"),
    [
        (1, "run", "1 run"),
        (0, "run", "0 runs"),
        (2, "dead letter", "2 dead letters"),
        (2, "entry", "2 entries"),
        (1, "entry", "1 entry"),
        (3, "key", "3 keys"),
        (2, "process", "2 processes"),
    ],
)
def test_numbers_agree(number: int, noun: str, said: str) -> None:
    assert grammar.count(number, noun) == said


def test_verbs_and_articles_agree() -> None:
    assert grammar.clause(1, "copy", "goes on", "go on") == "1 copy goes on"
    assert grammar.clause(2, "copy", "goes on", "go on") == "2 copies go on"
    assert [grammar.an(each) for each in ("int", "str", "Order", "")] == ["an int", "a str", "an Order", "a "]


def counted_by_hand(source: str) -> list[str]:
    """Numbers in f-strings that stand right before a plural. A constant, or what was found to be above one, may."""
    found = []
    tree = ast.parse(source)
    above_one = {
        ast.unparse(test.left)
        for node in ast.walk(tree)
        if isinstance(node, ast.If | ast.IfExp) and isinstance(test := node.test, ast.Compare)
        if ast.unparse(test).endswith((" > 1", " == 1"))
    } | {
        ast.unparse(test.left)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.BoolOp)
        for test in node.test.values
        if isinstance(test, ast.Compare) and ast.unparse(test).endswith(" > 1")
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, text in zip(node.values, node.values[1:], strict=False):
            if not isinstance(value, ast.FormattedValue) or not isinstance(text, ast.Constant):
                continue
            number = ast.unparse(value.value)
            is_constant = number.rpartition(".")[2].isupper() or number in above_one
            if _COUNTED.match(str(text.value)) and not is_constant:
                found.append(f"line {node.lineno}: {{{number}}}{text.value!r}")
    return found


def articles_by_hand(source: str) -> list[str]:
    """Names in f-strings behind an article that does not depend on them: `a int`. One in quotes, or of two that stand
    there, may be.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.JoinedStr):
            continue
        for text, value in zip(node.values, node.values[1:], strict=False):
            if not isinstance(value, ast.FormattedValue) or not isinstance(text, ast.Constant):
                continue
            is_known = isinstance(value.value, ast.IfExp) or value.conversion == ord("r")
            if _ARTICLE.search(str(text.value)) and not is_known:
                found.append(f"line {node.lineno}: {text.value!r}{{{ast.unparse(value.value)}}}")
    return found


def test_counting_by_hand_is_found() -> None:
    assert counted_by_hand("x = f'{len(runs)} runs go on'") == ["line 1: {len(runs)}' runs go on'"]
    assert counted_by_hand("x = f'{found.count} unread inputs'")
    assert counted_by_hand("x = f'{limits.RUNS_MAX} runs at most'") == []
    assert counted_by_hand("if len(found) > 1:\n    x = f'{len(found)} workers are named so'") == []


def test_articles_by_hand_are_found() -> None:
    assert articles_by_hand("x = f'{value!r} is not a {kind.__name__}'") == ["line 1: ' is not a '{kind.__name__}"]
    assert articles_by_hand("x = f'a {name!r} and {grammar.an(kind)}'") == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_messages_do_not_count_by_hand(folder: str) -> None:
    found = {
        str(file.relative_to(SOURCE)): said
        for file in sorted((SOURCE / folder).rglob("*.py"))
        if _SUSPECT.search(source := file.read_text())
        if (said := counted_by_hand(source) + articles_by_hand(source))
    }
    assert found == {}


def without_a_name(source: str) -> list[str]:
    """Commands in messages to a world called WORLD. Docstrings and the help of options say what that stands for."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, documented)}
    docs |= {
        str(each.value.value)
        for each in ast.walk(tree)
        if isinstance(each, ast.keyword) and each.arg == "help" and isinstance(each.value, ast.Constant)
    }
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [text for text in texts if text not in docs and re.search(r"worldline [a-z -]+ WORLD\b", text)]


def test_no_command_is_printed_for_a_world_called_world() -> None:
    assert without_a_name("x = 'type: worldline runs retry WORLD r'") == ["type: worldline runs retry WORLD r"]
    assert without_a_name("def f():\n    'As `worldline why WORLD`.'") == []
    found = {
        str(file.relative_to(SOURCE)): said
        for file in sorted(SOURCE.rglob("*.py"))
        if " WORLD" in (source := file.read_text()) and (said := without_a_name(source))
    }
    # What is journaled has no name in it: `reports.addressed` puts it there when it is shown.
    assert list(found) == ["kernel/execution/divergence_report.py"]
