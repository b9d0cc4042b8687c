"""The project's own campaign: its programs, clients, hosts and guards, as a suite that the simulator can run.

`worldline simulate --suite worldline.sim.own` runs it; `make sim` until every boundary has been broken at in every way.
"""

from __future__ import annotations

import functools

from worldline.sim.campaign import Job
from worldline.sim.check.verdicts import Verdicts
from worldline.sim.faults import ablations
from worldline.sim.hosts.crew import Crew, hosted
from worldline.sim.load.workloads import Plan
from worldline.sim.suite import Suite

SUITE = Suite(hosted, Crew, promises=Verdicts, guards=ablations.ALL, has_ops=True)
SWARM = Job(suite=__name__)


def planned(plan: Plan) -> Suite:
    """The same, with a plan for the clients that is not drawn."""
    return Suite(hosted, functools.partial(Crew, plan=plan), promises=Verdicts, guards=ablations.ALL, has_ops=True)
