"""Figures of the house that may only become better: `tools/house_figures.py` counts them."""

from __future__ import annotations

import pytest
from tools import house_figures as tool

import worldline as wl
from tests.arch.trees import SOURCE

FIGURES = tool.Figures(SOURCE)
# What each figure may be at most. A change that makes one smaller writes the smaller number here.
AT_MOST = {
    "class names in several files": 0,
    "file names in several folders": 0,
    "exchangeable file names": 0,
    "fmt: skip": 11,
    "import aliases": 725,
    "constructors of more than 7 arguments": 20,
    "parameters named found, given, wanted, before": 74,
}
NAMES_MAX = 80  # at the top of `worldline`


@pytest.mark.parametrize("figure", AT_MOST)
def test_a_figure_does_not_become_worse(figure: str) -> None:
    assert FIGURES.as_dict()[figure] <= AT_MOST[figure], "\n".join(FIGURES.names())


def test_the_top_has_few_names() -> None:
    assert len(wl.__all__) <= NAMES_MAX, "errors have a room, worldline.errors, and so have operators: worldline.ops"


def test_names_are_compared_by_their_words() -> None:
    assert tool.stems("held_worlds") == tool.stems("held_world")
    assert tool.stem("marker") == tool.stem("marks") == tool.stem("marked") == tool.stem("marking")
    assert tool.stems("fork_commit") != tool.stems("step_commit")


def test_parameters_that_say_nothing_are_found() -> None:
    figures = tool.Figures(SOURCE / "demo")
    figures.parameters = []
    figures.add("x.py", "def f(found, *, before=1, key=2):\n    given = found\n")
    assert figures.parameters == ["x.py:1 found", "x.py:1 before"]


def test_what_is_counted() -> None:
    comments, code = tool.count_comments("# why\nx = 1  # because\n# --- part\ny = 2  # noqa: E501\n")
    assert (comments, code) == (2, 2)
    assert tool.may_repeat(["model/lease.py", "layers/lease.py"])
    assert not tool.may_repeat(["model/lease.py", "worker/lease.py"])
