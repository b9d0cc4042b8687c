"""Hostile programs on the kernel alone: nothing escapes a step, and every step can be done again.

They are those that follow on the ones that the hosts run.
"""

from __future__ import annotations

from tests import options
from tests.hostile import programs, rehearsing

END = programs.COUNT * 3 // 2
TWICE = options.number("hostile_twice")


def test_nothing_escapes_a_step_and_worlds_live_on() -> None:
    reports = rehearsing.rehearse(programs.COUNT, END, hash_seed=1)
    assert [each.number for each in reports] == list(range(programs.COUNT, END))
    problems = [f"{programs.program(each.number)}: {what}" for each in reports for what in each.problems]
    assert not problems, "\n".join([f"{len(problems)} problems:", *problems[:20]])


def test_a_journal_does_not_depend_on_the_process() -> None:
    """Not on what was done before in it, and not on how Python hashes there."""
    first = rehearsing.rehearse(0, TWICE, hash_seed=1)
    second = rehearsing.rehearse(0, TWICE // 2, hash_seed=2) + rehearsing.rehearse(TWICE // 2, TWICE, hash_seed=3)
    for one, other in zip(first, second, strict=True):
        assert one.digest == other.digest, str(programs.program(one.number))
