"""The hosts of the program of flow domains: which version of its documents each of their lives has.

No other host has that program. They begin with the first version; during chaos they are started again now and then, as
by a deployment, and every other life draws a version. When the faults end, all of them have the first one. An intent
that waits because its cell did not fit goes on when its world is next taken by a host, so an operator sends each world
an input then.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections.abc import Awaitable, Callable, Sequence

from tests.campaign.load import flow_domains, workloads
from worldline.api.universe_api import Universe
from worldline.base import errors
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.flow_core.authoring.action_calls import event_of
from worldline.kernel.authoring.program import Program
from worldline.model.roles import EMBEDDED
from worldline.model.settings import Settings
from worldline.model.world_records import Status
from worldline.sim.faults.faulty_store import Faults
from worldline.sim.faults.profiles import Profile
from worldline.sim.hosts.sim_machines import ClusterMember, Code, hosting
from worldline.sim.runtime.sim_loop import SimMachine

DEPLOYMENT_SECONDS = (2.0, 8.0)
WAKING = "wakes "  # what the ids of the operator's inputs begin with


class FlowHosts:
    def __init__(self, seed: int, profile: Profile, settings: Settings) -> None:
        self._seed = seed
        self._profile = profile
        self._settled = False
        self._count = 0  # of deployments, the first one too, with which they begin
        self.code = Code(self._version_of, settings)

    def members(self, main: Callable[[Connection], Awaitable[None]]) -> list[ClusterMember]:
        count = random.Random(f"{self._seed}:flow hosts").randint(1, 2) if self._profile.flows else 0
        return [ClusterMember(f"flows-{number}", main, runs=EMBEDDED, code=self.code) for number in range(count)]

    def _version_of(self, host: SimMachine) -> Program:
        draws = random.Random(f"{self._seed}:flow version:{host.label}")
        first = self._settled or host.life % 2
        return flow_domains.VERSIONS[flow_domains.FIRST if first else draws.choice(flow_domains.UPGRADES)]

    async def deploy(
        self, members: Sequence[ClusterMember], faults: Faults, start_again: Callable[[ClusterMember], None]
    ) -> None:
        """Until the faults end: they are started again, one after the other, maybe with other documents."""
        draws = random.Random(f"{self._seed}:deployments")
        while faults.active:
            for each in hosting(members, self.code):
                assert each.host is not None
                if self._count and faults.allow(each.host, "started again, maybe with another version"):
                    start_again(each)
            self._count += 1
            await asyncio.sleep(draws.uniform(*DEPLOYMENT_SECONDS))

    def settle(self, members: Sequence[ClusterMember], start_again: Callable[[ClusterMember], None]) -> None:
        """All get the first version, now."""
        self._settled = True
        for each in hosting(members, self.code):
            start_again(each)


async def wake(connection: Connection) -> None:
    """Send every world of flow domains an input that changes nothing but a line."""
    for meta in [each async for each in Universe(connection).worlds()]:
        if meta.program == flow_domains.NAME and meta.status is Status.ACTIVE:
            with contextlib.suppress(errors.NotFound):  # it was deleted meanwhile
                await workloads.insist(functools.partial(_wake, Handle(connection, meta.name)))


async def _wake(world: Handle) -> None:
    id = WAKING + world.name
    schema, data = event_of(flow_domains.Till.add(0), key="", id=id, named=False)
    await world.send(schema, data, id=id)
