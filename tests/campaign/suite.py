"""The project's own campaign: its programs, clients, hosts and guards, as a suite that the simulator can run.

`worldline simulate --suite tests.campaign.suite` runs it, from the folder of the repository; `make sim` until every
boundary has been broken at in every way.
"""

from __future__ import annotations

import functools

from tests.campaign.check.verdicts import Verdicts
from tests.campaign.faults import ablations
from tests.campaign.hosts.crew import Crew, hosted
from tests.campaign.load.workloads import Plan
from worldline.sim.campaign import CampaignJob
from worldline.sim.suite import Suite

SUITE = Suite(hosted, Crew, promises=Verdicts, guards=ablations.ALL, has_ops=True)
SWARM = CampaignJob(suite=__name__)


def planned(plan: Plan) -> Suite:
    """The same, with a plan for the clients that is not drawn."""
    return Suite(hosted, functools.partial(Crew, plan=plan), promises=Verdicts, guards=ablations.ALL, has_ops=True)
