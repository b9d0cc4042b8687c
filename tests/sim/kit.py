"""A small cluster in calm, for scenarios that say exactly what happens."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable

from tests.campaign.hosts import crew
from tests.campaign.load import programs, workloads
from worldline.api.universe_api import Universe
from worldline.api.world_api import World
from worldline.client.connection import Connection
from worldline.model.settings import Settings
from worldline.sim.check.audit import Audit
from worldline.sim.faults import profiles
from worldline.sim.hosts import cluster as clusters
from worldline.sim.runtime.sim_loop import SimLoop

WORLDS = [("counter-0", "counters"), ("shop-0", "orders")]
PLAN = workloads.Plan(worlds=WORLDS, ops=[], pause_ms=10)
SECONDS = 300


class Calm:
    """The cluster, a client of it that hosts nothing, and the auditor."""

    def __init__(self, cluster: clusters.Cluster, audit: Audit) -> None:
        self.cluster = cluster
        self.audit = audit
        self.universe: Universe

    @property
    def seconds(self) -> float:
        return self.cluster.loop.time()

    def owner_of(self, world: World) -> str:
        """The member that has the lease of a world, by name."""
        at = world._handle._at
        assert at is not None
        return self.audit.worlds[at].owner.partition("/")[0]

    def kill(self, name: str) -> None:
        """End a member for good."""
        member = next(each for each in self.cluster.members if each.name == name)
        member.stay_dead()
        assert member.host is not None
        self.cluster.loop.crash(member.host)


def calmly(
    scenario: Callable[[Calm], Awaitable[None]],
    *,
    seed: int = 0,
    settings: Settings | None = None,
    **profile: object,
) -> None:
    """Run a scenario against hosts that nothing befalls but what the scenario does to them."""
    loop = SimLoop(str(seed))
    drawn = profiles.Profile(clients=0, settings=settings or Settings(), **profile)  # type: ignore[arg-type]
    audit = Audit()
    crewed = functools.partial(crew.Crew, plan=PLAN)
    calm = Calm(clusters.Cluster(loop, seed, drawn, crew.hosted(drawn), crewed), audit)

    async def main() -> None:
        await calm.cluster.boot([audit.look])
        opened = Connection(calm.cluster.calm(), calm.cluster.universe, "simulated", [], calm.cluster.settings)
        for program in programs.PROGRAMS:
            opened.knows(program)
        calm.universe = Universe(opened)
        await scenario(calm)
        calm.cluster.check_roles()
        calm.cluster.stop()
        assert [bug for member in calm.cluster.members for bug in member.bugs] == []
        assert audit.violations == []

    try:
        loop.run(main(), seconds=SECONDS)
    finally:
        loop.finish()
