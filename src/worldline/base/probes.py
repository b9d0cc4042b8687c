"""Probes: marks in branches that are rarely taken, so that a test can prove that it takes one.

`probes.hit("lmdb.map-grown")` stands in the branch. It does nothing unless a test collects: then the name is counted.
Every name stands at one place only, and at least one test says that it takes it (`@pytest.mark.probe("...")`); it fails
if it does not. Probes decide nothing, and no code reads them.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

_collectors: list[Counter[str]] = []


def hit(name: str) -> None:
    """The branch of this name is taken. `name`: the component, a dot, and what happened."""
    for each in _collectors:
        each[name] += 1


@contextlib.contextmanager
def collect() -> Iterator[Counter[str]]:
    """Count the probes that are hit in this process within the block, in all threads."""
    counted: Counter[str] = Counter()
    _collectors.append(counted)
    try:
        yield counted
    finally:
        # By identity: counters that count the same are equal, and blocks may be nested.
        _collectors[:] = [each for each in _collectors if each is not counted]
