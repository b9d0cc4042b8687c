"""Which tests stay together under `pytest -n`, and which come first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import xdist.newhooks

from tests import conftest, scheduling
from tests.arch.trees import ROOT

WHOLE = "tests/hostile/test_cells.py"
SPLIT = "tests/kernel/test_draws.py"


def test_a_file_with_a_fixture_of_its_own_is_run_by_one_worker() -> None:
    assert scheduling.unit(f"{WHOLE}::test_a_cell[exit in where]") == WHOLE
    assert scheduling.unit(f"{SPLIT}::test_x[a]") == f"{SPLIT}::test_x[a]"


def test_long_tests_are_at_both_ends_and_are_there() -> None:
    found = [*scheduling.BUSY, "tests/any.py", *reversed(scheduling.WAITING)]
    assert sorted(found, key=scheduling.rank) == found
    assert [each for each in found if each != "tests/any.py" and not (ROOT / each).exists()] == []


class Node:
    """A worker, as the scheduler sees it."""

    shutting_down = False
    gateway = SimpleNamespace(id="gw")

    def __init__(self) -> None:
        self.given: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def test_workers_take_from_both_ends_and_every_test_is_run_once() -> None:
    tests = [f"{SPLIT}::test_{number}" for number in range(20)]
    nodes = [Node() for _ in range(scheduling.BUSY_WORKERS + 2)]
    config: Any = SimpleNamespace(option=SimpleNamespace(), getvalue=lambda _: [f"{len(nodes)}*popen"])
    made = scheduling.Scheduling(config)
    for node in nodes:
        made.add_node(node)
        made.add_node_collection(node, tests)
    made.schedule()
    assert nodes[0].given[0] == 0
    assert [node.given[0] for node in nodes[scheduling.BUSY_WORKERS :]] == [19, 18]
    done = 0
    while any(len(node.given) > done for node in nodes):
        for node in nodes:
            if len(node.given) > done:
                made.mark_test_complete(node, node.given[done])
        done += 1
    assert sorted(each for node in nodes for each in node.given) == list(range(20))
    assert made.tests_finished
    assert all(node.shutting_down for node in nodes)


def test_xdist_asks_for_it(pytestconfig: pytest.Config) -> None:
    """A hook that no plugin knows is called by nothing, and nothing says so."""
    asked = pytestconfig.pluginmanager.hook.pytest_xdist_make_scheduler
    assert "pytest_xdist_make_scheduler" in dir(xdist.newhooks)
    assert [each.function for each in asked.get_hookimpls()] == [conftest.pytest_xdist_make_scheduler]
