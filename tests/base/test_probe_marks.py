"""Probes count while something collects, and do nothing otherwise. A marked test must take its branch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests import conftest
from worldline.base import probes


class Marked:
    """A test with one mark, as the hook sees it."""

    def iter_markers(self, name: str) -> Iterator[Any]:
        assert name == "probe"
        yield pytest.mark.probe("sample.taken").mark


def call(*hits: str) -> None:
    """Let the hook around a marked test run, the test hitting these probes."""
    hook = conftest.pytest_runtest_call(Marked())  # type: ignore[arg-type]
    next(hook)
    for name in hits:
        probes.hit(name)
    next(hook, None)


def test_hits_are_counted_within_the_block_alone() -> None:
    probes.hit("sample.outside")
    with probes.collect() as outer:
        probes.hit("sample.once")
        with probes.collect() as inner:
            probes.hit("sample.twice")
        probes.hit("sample.twice")
    probes.hit("sample.outside")
    assert outer == {"sample.once": 1, "sample.twice": 2}
    assert inner == {"sample.twice": 1}


def test_a_marked_test_must_take_its_branch() -> None:
    call("sample.other", "sample.taken")
    with pytest.raises(AssertionError, match="takes no such branch"):
        call("sample.other")
    with probes.collect() as seen:
        pass
    assert seen == {}
