"""What a run is told of its workload: the programs, who is there besides hosts, what is promised, which guards may be
missing. A run knows nothing else of it.

A user's scenario makes a suite (`of`); others are found by name, `MODULE` or `MODULE:NAME` (`load`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import msgspec

from worldline.base import errors
from worldline.kernel.authoring.program import Program
from worldline.sim.check.audit import Audit
from worldline.sim.check.promises import Promises
from worldline.sim.faults.guards import Guards
from worldline.sim.faults.profiles import Profile
from worldline.sim.hosts.cluster import Cluster
from worldline.sim.hosts.company import Company
from worldline.sim.hosts.driver import Driver
from worldline.sim.load.scenarios import Scenario
from worldline.terminal import program_files

NAME = "SUITE"
# A user's timers could be hours late after an excursion of the store's clock, without a visible reason.
CALMED = "excursion=0"


class Suite(msgspec.Struct, frozen=True):
    """`programs`: those that every host has. `hosts`: who else is there. `promises`: what is checked besides.

    `profile`: what every profile is turned to. `has_ops`: its clients do `ops_max` things at most, as a profile says.
    """

    programs: Callable[[Profile], Sequence[Program]]
    hosts: Callable[[Cluster], Company]
    promises: Callable[[Cluster, Audit], Promises] = Promises
    guards: Guards = Guards()
    profile: str = ""
    has_ops: bool = False


def of(scenario: Scenario, guards: Guards | None = None) -> Suite:
    """A user's programs and scenario. `guards`: those that can be switched off."""
    return Suite(
        lambda _: scenario.programs,
        functools.partial(Driver, scenario),
        guards=guards or Guards(),
        profile=CALMED,
    )


def load(name: str) -> Suite:
    """The suite of that name. Modules are looked for in the working directory, too."""
    module, _, member = name.partition(":")
    found = program_files.import_member(module, member or NAME)
    if not isinstance(found, Suite):  # said here: what else the module has under this name would fail deep in a run
        raise errors.BadInput(f"{module} has no suite {member or NAME!r}; a suite is a `worldline.sim.suite.Suite`")
    return found
