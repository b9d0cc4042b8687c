"""Every live rule of the Host contract is broken once by `tools/mutate_rules.py`, and the test that it names must fail.

Here the table is held to the code and to the page, and two rules are really broken; with the option `every_mutation`,
all are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools import mutate_rules as tool

from tests import options
from tests.flow.test_contract_page import LIVE, SECTIONS

ALL = tool.table()
TRIED = [each for each in ALL if options.flag("every_mutation") or "MAIL-4" in each.rules]
SORTED = next(each for each in ALL if each.rules == ("8.2",))


@pytest.fixture(scope="module")
def copy() -> Iterator[Path]:
    with tool.copied() as folder:
        yield folder


def test_every_live_rule_is_broken_by_a_mutation() -> None:
    broken = dict.fromkeys(rule for each in ALL for rule in each.rules)
    assert [rule for rule in (*LIVE, *SECTIONS) if rule not in broken] == []
    assert [rule for rule in broken if rule not in tool.rows()] == []


def test_every_mutation_applies_to_the_code_of_now_and_its_test_is_named_by_the_page() -> None:
    named = tool.rows()
    assert [wrong for each in ALL if (wrong := each.misfit(tool.ROOT, named))] == []


@pytest.mark.parametrize("mutation", TRIED, ids=lambda each: "+".join(each.rules))
def test_its_test_catches_it(mutation: tool.Mutation, copy: Path) -> None:
    found = tool.tried(mutation, copy, tool.rows())
    assert found.result == tool.CAUGHT, found.line()


def other(*edits: tuple[str, str], test: str = SORTED.test) -> tool.Mutation:
    return tool.Mutation(SORTED.rules, test, SORTED.file, edits)


def test_what_changes_nothing_survives_and_what_cannot_be_imported_is_not_caught(copy: Path) -> None:
    before = SORTED.path(copy).read_bytes()
    for edit in (('"""Canonical JSON', '"""JSON'), ("import functools", "import functools!")):
        assert tool.tried(other(edit), copy, tool.rows()).result == tool.SURVIVED
        assert SORTED.path(copy).read_bytes() == before  # each is undone


@pytest.mark.parametrize(
    ("mutation", "said"),
    [
        (other(("no such text", "")), "0 times, and not once"),
        (other(("return", "")), "times, and not once"),
        (other(("import functools", "import functools")), "changes nothing"),
        (other(("import functools", ""), test="test_powers"), "does not name test_powers for 8.2"),
    ],
)
def test_what_does_not_apply_is_told(mutation: tool.Mutation, said: str) -> None:
    found = tool.tried(mutation, tool.ROOT, tool.rows())
    assert (found.result, said in found.said) == (tool.INAPPLICABLE, True), found.said


def test_an_unknown_rule_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        tool.main(["--only", "MAIL-9"])
    assert ended.value.code == 2
    assert "no mutation breaks MAIL-9" in capsys.readouterr().err


def test_one_rule_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["--only", "8.2", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["counts"] == {"caught": 1, "survived": 0, "does not apply": 0}
    assert said["mutations"][0]["test"] == "test_write_targets_are_sorted"
