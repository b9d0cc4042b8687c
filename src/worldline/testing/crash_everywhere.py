"""Crashing everywhere: a scenario run again and again, each time with a crash at another entry of its journal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from worldline.base import failures
from worldline.kernel.authoring.program import Program
from worldline.kernel.authoring.scripts import Script
from worldline.testing import tested_world
from worldline.testing.tested_world import TestWorld


def crash_everywhere(
    scenario: Callable[[TestWorld], object], program: Program, script: Script | None = None, /, **options: Any
) -> int:
    """Run a scenario undisturbed, then once for each entry of its journal with a crash there, and compare.

    A crash at a step's last entry comes after its commit; one at an entry inside a step comes before, so the step is
    done again. Journal, state and what the scenario returns must be those of the undisturbed run, else `Diverged`.
    Returns how many crashes were tried. `options` are those of `testing.world`.
    """
    with tested_world.world(program, script, **options) as twin:
        expected = scenario(twin)
        twin.prove()  # the undisturbed run is what all others are compared with, so it must be sound itself
        head = twin.head
    once = {**options, "twice": False}  # the twin has done every step twice; here each is compared with the twin's
    for height in range(1, head.height + 1):
        with tested_world.world(program, script, **once) as disturbed:
            disturbed.crash(at=height)
            found = scenario(disturbed)
            if (disturbed.head, found) != (head, expected):
                raise failures.Diverged(
                    f"after a crash at height {height} the scenario ended differently:\n"
                    f"  undisturbed: {expected!r}, height {head.height}, state {head.state.hex()[:16]}\n"
                    f"  disturbed:   {found!r}, height {disturbed.head.height}, "
                    f"state {disturbed.head.state.hex()[:16]}\n{disturbed.tail()}"
                )
            # A scenario that depends on something outside ends before the height: then nothing was tried there.
            assert disturbed.crashes == 1, "each entry is reached, and crashed at, once"
    return head.height
