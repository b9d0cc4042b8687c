"""Which worker of `pytest -n` runs which test, and in what order.

A file that has a fixture of its own for the whole file is one unit: split, every worker would make that fixture. Every
other test is a unit. Long units come first, so that no worker is left alone with one in the end.

The mark `xdist_group` is not used: xdist 3.8 writes the group into a private field that pytest 9.2 has no more, so the
mark does nothing, and nothing says so.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[1]

# By the beginning of their names. Those that use up a processor stand between those that mostly wait.
LONG = (
    "tests/hostile/test_hosts.py",
    "tests/sim/test_ablations.py",
    "tests/typing/",
    "tests/chaos/",
    "tests/sim/",
    "tests/hostile/",
    "tests/cli/test_blast_radius.py",
)


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """As `--dist loadscope`, with units of our own, in the order in which the tests were collected."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)


def rank(nodeid: str) -> int:
    """Tests are run by rank."""
    return next((number for number, beginning in enumerate(LONG) if nodeid.startswith(beginning)), len(LONG))


def unit(nodeid: str) -> str:
    """What is run by one worker: a whole file, or a test."""
    file = nodeid.partition("::")[0]
    return file if is_whole(file) else nodeid


@cache
def is_whole(file: str) -> bool:
    path = ROOT / file
    return path.is_file() and '@pytest.fixture(scope="module")' in path.read_text()
