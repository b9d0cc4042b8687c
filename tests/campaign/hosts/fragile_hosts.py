"""The hosts of the fragile program: which version of its code each of their lives has, and with which crash budget.

No other host has that program, so what ends them is no trouble to others. They begin with the first version; during
chaos every other life draws one. Then they are all started with the first again, whose bad workflows are still bad,
with another one for a while, and in the end with the mended one.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import msgspec

from tests.campaign.load import fragile, workloads
from worldline.client.connection import Connection
from worldline.host.process import EMBEDDED
from worldline.kernel.authoring.program import Program
from worldline.model.settings import Settings
from worldline.sim.faults.profiles import Profile
from worldline.sim.hosts.sim_machines import ClusterMember, Code
from worldline.sim.runtime.sim_loop import SimMachine

CRASHES_MAX = 1_000  # as good as no budget
TAKEOVER_SECONDS = 15.0  # besides the lease's TTL: the host is started again, and finds its worlds


class FragileHosts:
    def __init__(self, seed: int, profile: Profile, settings: Settings, *, has_budget: bool = True) -> None:
        self._seed = seed
        self.budget = profile.crash_budget if has_budget else CRASHES_MAX
        worker = msgspec.structs.replace(settings.worker, crash_budget=self.budget)
        self._lease_ttl_ms = worker.lease_ttl_ms
        self.code = Code(self._program_of, msgspec.structs.replace(settings, worker=worker))
        self._profile = profile
        self._version = ""  # of all of them; none: drawn for each life

    def members(self, main: Callable[[Connection], Awaitable[None]]) -> list[ClusterMember]:
        count = random.Random(f"{self._seed}:fragile").randint(1, 2) if self._profile.fragile else 0
        return [ClusterMember(f"fragile-{number}", main, runs=EMBEDDED, code=self.code) for number in range(count)]

    def _program_of(self, host: SimMachine) -> Program:
        return fragile.VERSIONS[self._version or (fragile.FIRST if host.life % 2 else self.drawn(host.label))]

    def drawn(self, what: str) -> str:
        """A version, by the seed."""
        return self._profile.code or random.Random(f"{self._seed}:code:{what}").choice(fragile.EDITED)

    def upgrade(self, version: str) -> None:
        """From the next life on, all of them have this version."""
        self._version = version

    def patience_seconds(self, plan: workloads.Plan) -> float:
        """How long all the deaths that are planned take at most, one after the other."""
        ops = [op for each in plan.ops for op in each if op.kind in fragile.KINDS]
        deaths = sum(min(op.amount, self._profile.crash_budget + 1) for op in ops)
        return (deaths + 2) * (2 * self._lease_ttl_ms / 1000 + TAKEOVER_SECONDS) if ops else 0
