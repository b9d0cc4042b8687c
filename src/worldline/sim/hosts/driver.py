"""A user's scenario in a cluster: one machine that never fails drives it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from worldline.client.connection import Connection
from worldline.model.roles import Role
from worldline.sim.hosts.cluster import Cluster, serve
from worldline.sim.hosts.company import Company
from worldline.sim.hosts.sim_machines import ClusterMember
from worldline.sim.load import scenarios


class Driver(Company):
    is_users = True

    def __init__(self, scenario: scenarios.Scenario, cluster: Cluster) -> None:
        self._scenario = scenario
        self._driven = scenarios.Driven(scenario)
        self._history = cluster.history
        cluster.quiet.stand_off(cluster.profile.latency_us)  # as it is for all other machines

    def patched(self) -> contextlib.AbstractContextManager[None]:
        return scenarios.scripted(self._scenario.script)

    def clients(self, hosting: Callable[[], Sequence[Role]]) -> list[ClusterMember]:
        del hosting
        return [ClusterMember(scenarios.SCENARIO, self._drive, client=True, steady=True)]

    async def _drive(self, connection: Connection) -> None:
        await self._driven.begin(connection)
        # Noted here: what keeps the run from being quiet is the part before the `yield` only.
        self._history.finished[scenarios.SCENARIO] = None
        await serve(connection)  # the machine stays: what follows the `yield` still uses its universe

    async def finish(self) -> None:
        await self._driven.finish()

    def complaints(self) -> list[tuple[str, str]]:
        verdict = self._driven.verdict()
        return [(scenarios.SCENARIO, verdict)] if verdict else []
