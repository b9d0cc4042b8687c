"""Which tests stay together under `pytest -n`, and which come first."""

from __future__ import annotations

import pytest
import xdist.newhooks

from tests import conftest, scheduling
from tests.arch.trees import ROOT

WHOLE = "tests/hostile/test_cells.py"
SPLIT = "tests/kernel/test_draws.py"


def test_a_file_with_a_fixture_of_its_own_is_run_by_one_worker() -> None:
    assert scheduling.unit(f"{WHOLE}::test_a_cell[exit in where]") == WHOLE
    assert scheduling.unit(f"{SPLIT}::test_x[a]") == f"{SPLIT}::test_x[a]"


def test_long_tests_come_first_and_are_there() -> None:
    assert scheduling.rank(scheduling.LONG[0]) < scheduling.rank(f"{WHOLE}::test_a_cell") < scheduling.rank(SPLIT)
    assert [each for each in scheduling.LONG if not (ROOT / each.partition("::")[0]).exists()] == []


def test_xdist_asks_for_it(pytestconfig: pytest.Config) -> None:
    """A hook that no plugin knows is called by nothing, and nothing says so."""
    asked = pytestconfig.pluginmanager.hook.pytest_xdist_make_scheduler
    assert "pytest_xdist_make_scheduler" in dir(xdist.newhooks)
    assert [each.function for each in asked.get_hookimpls()] == [conftest.pytest_xdist_make_scheduler]
