"""Options of the tests: both doses, single options on top, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import options
from tests.cli import cli_kit

TABLE = options.table(
    """
    [kill_rounds]
    default = 200
    soak = 2_000
    what = "kills"

    [chaos_seconds]
    default = 3.0
    soak = 60.0
    what = "chaos"

    [every_crash]
    default = false
    soak = true
    what = "crashes"
    """
)
ROOT = Path(__file__).parents[1]


def test_a_run_has_the_default_dose() -> None:
    assert options.values(TABLE, {}) == {"kill_rounds": 200, "chaos_seconds": 3.0, "every_crash": False}


def test_one_variable_selects_the_soak() -> None:
    found = options.values(TABLE, {options.DOSE: "soak"})
    assert found == {"kill_rounds": 2_000, "chaos_seconds": 60.0, "every_crash": True}
    assert options.values(TABLE, {options.DOSE: ""}) == options.values(TABLE, {options.DOSE: "default"})


def test_single_options_are_set_on_top_and_the_last_counts() -> None:
    single = " kill_rounds=7  chaos_seconds=10 every_crash=false kill_rounds=8 "
    found = options.values(TABLE, {options.DOSE: "soak", options.SINGLE: single})
    assert found == {"kill_rounds": 8, "chaos_seconds": 10.0, "every_crash": False}
    assert [type(each) for each in found.values()] == [int, float, bool]  # a number of seconds has a point again


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        (
            options.SINGLE,
            "kil_rounds=5",
            "WORLDLINE_TESTS: tests/options.toml has no 'kil_rounds'; did you mean 'kill_",
        ),
        (options.SINGLE, "unheard=5", "WORLDLINE_TESTS: tests/options.toml has no 'unheard'"),
        (options.SINGLE, "every_crash", "WORLDLINE_TESTS: every_crash has no value; write every_crash=true"),
        (options.SINGLE, "every_crash=1", "WORLDLINE_TESTS: every_crash is '1'; write true or false"),
        (options.SINGLE, "kill_rounds=2.5", "WORLDLINE_TESTS: kill_rounds is '2.5'; write a whole number"),
        (options.SINGLE, "kill_rounds=-1", "WORLDLINE_TESTS: kill_rounds is '-1'; write a whole number"),
        (options.SINGLE, "kill_rounds=true", "WORLDLINE_TESTS: kill_rounds is 'true'; write a whole number"),
        (options.SINGLE, "chaos_seconds=nan", "WORLDLINE_TESTS: chaos_seconds is 'nan'; write a number of seconds"),
        (options.DOSE, "soka", "WORLDLINE_DOSE is 'soka'; did you mean 'soak'?"),
        ("WORLDLINE_KILL_ROUNDS", "9", 'WORLDLINE_KILL_ROUNDS is not a variable; use WORLDLINE_TESTS="kill_rounds=9"'),
    ],
)
def test_what_is_unknown_is_refused(variable: str, text: str, said: str) -> None:
    with pytest.raises(options.Refused) as refused:
        options.values(TABLE, {variable: text})
    assert said in str(refused.value)


def test_a_test_that_asks_for_an_unknown_option_or_another_type_fails() -> None:
    with pytest.raises(options.Refused, match="has no 'kill_round'; did you mean 'kill_rounds'"):
        options.number("kill_round")
    with pytest.raises(AssertionError, match="kill_rounds is of type int, not bool"):
        options.flag("kill_rounds")


ASK = "from tests import options; print(options.number('kill_rounds'), options.number('seeds'))"


def test_processes_of_tests_inherit_both_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(options.DOSE, "soak")
    monkeypatch.setenv(options.SINGLE, "seeds=77")
    soak = options.table(options.FILE.read_text())["kill_rounds"].soak
    for environment in (dict(os.environ), cli_kit.environment()):
        command = [sys.executable, "-c", ASK]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [str(soak), "77"]
