"""Who is in the clusters of the project's own campaign: clients with plans, hosts of programs that change, universes
elsewhere, a client with two doors, and two outside the cluster that answer what they were not asked.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from unittest import mock

from tests.campaign.hosts import backlog, doors, elsewhere, flow_hosts, fragile_hosts
from tests.campaign.hosts.forger import Forger
from tests.campaign.hosts.rogue import Rogue
from tests.campaign.load import (
    clerks,
    flow_domains,
    forgers,
    forks,
    fragile,
    hostile,
    offices,
    programs,
    sketches,
    workloads,
)
from worldline.base import limits
from worldline.client.connection import Connection
from worldline.kernel.authoring.program import Program
from worldline.model import ids
from worldline.model.roles import Role
from worldline.model.settings import Settings
from worldline.runtime import peer_stores
from worldline.runtime.store_opening import Store
from worldline.sim.faults import faulty_objects
from worldline.sim.faults.profiles import Profile
from worldline.sim.hosts.cluster import LAG_SECONDS, Cluster, serve
from worldline.sim.hosts.company import Company, Find, Main
from worldline.sim.hosts.sim_machines import Away, ClusterMember, hosting
from worldline.sim.load.history import Called, ClientOp
from worldline.sim.load.scenarios import UNIVERSE
from worldline.sim.runtime.sim_env import SimEnv
from worldline.sim.runtime.sim_loop import SimMachine
from worldline.sim.runtime.truth import AppliedBatch, Truth

OP_SECONDS = 2.0  # of a client, on the average, when nothing goes wrong
QUEUED_SECONDS = 6.0  # so much longer takes an intent of a flow domain that is behind others, whose effects are slow
# An operation of a client that reads journals late: so many reads, one after the other, until its answer shows.
LAGGING_SECONDS = 5 * max(LAG_SECONDS)
EDITED = (fragile.VERSIONS[fragile.FIRST], flow_domains.VERSIONS[flow_domains.FIRST])  # programs that change


def hosted(profile: Profile) -> list[Program]:
    """The programs that every host has."""
    found = [*programs.PROGRAMS, hostile.hostiles, forks.branches, offices.offices, sketches.sketches]
    found += [flow_domains.couriers, clerks.clerks] if profile.flows else []
    return found + ([forgers.court] if profile.forgers else [])


class Crew(Company):
    """`plan`: what clients do, if that is not drawn."""

    edited = EDITED
    mended = (fragile.VERSIONS[fragile.MENDED],)

    def __init__(self, cluster: Cluster, plan: workloads.Plan | None = None) -> None:
        loop, seed, profile = cluster.loop, cluster.seed, cluster.profile
        self._cluster = cluster
        self._profile = profile
        self.plan = plan or workloads.draw(seed, profile.clients, profile.kinds, _wanted(profile))
        self.worlds = self.plan.worlds
        lacks_budget = cluster.guards.name == "crash-budget"
        self.fragile = fragile_hosts.FragileHosts(seed, profile, cluster.settings, has_budget=not lacks_budget)
        self.flows = flow_hosts.FlowHosts(seed, profile, cluster.settings)
        self.outside = programs.Outside(f"{seed}:outside", profile.adapters, lambda: loop.now_us)
        self.elsewhere: elsewhere.Elsewhere | None = None
        if profile.abroad:
            self.elsewhere = elsewhere.Elsewhere(loop, seed, cluster.faults, cluster.quiet, cluster.trace)

    # --- Boot -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def patched(self) -> Iterator[None]:
        """Cells of flow domains are soon full, in seeds that have them."""
        cell_bytes_max = flow_domains.CELL_BYTES_MAX if self._profile.flows else limits.FLOW_CELL_BYTES_MAX
        with mock.patch.object(limits, "FLOW_CELL_BYTES_MAX", cell_bytes_max):
            yield

    def begin(self) -> None:
        programs.OUTSIDE.set(self.outside)
        hostile.ENDLESS.clear()
        fragile.begin()

    async def boot(self, others: Sequence[Callable[[AppliedBatch], None]]) -> None:
        cluster = self._cluster
        if self.elsewhere is not None:
            home = Away(UNIVERSE, cluster.universe, cluster.truth, cluster.bodies, cluster.objects)
            seen = functools.partial(faulty_objects.FaultyObjects, faults=cluster.faults)
            await self.elsewhere.boot(home, cluster.settings, audit=others, sees=seen)
        engine = cluster.calm().engine
        await backlog.fill(engine, self.plan.backlog, cluster.addresses, cluster.history, cluster.truth)

    def members(self) -> list[ClusterMember]:
        return self.fragile.members(serve) + self.flows.members(serve)

    def clients(self, hosting: Callable[[], Sequence[Role]]) -> list[ClusterMember]:
        """Some of them host as well."""
        found, ops_max = [], self._profile.ops_max
        for number, ops in enumerate(self.plan.ops):
            name, runs = f"client-{number}", hosting()
            found.append(ClusterMember(name, self._client(name, ops[:ops_max]), runs=runs, client=True))
        for number, ops in enumerate(self.plan.doors):
            name = f"{workloads.DOORS}-{number}"
            found.append(ClusterMember(name, self._two_doors(name, ops[:ops_max]), client=True, steady=True))
        return found if self.elsewhere is None else found + self.elsewhere.members(serve)

    def _client(self, name: str, ops: list[ClientOp]) -> Main:
        async def main(connection: Connection) -> None:
            await workloads.client(
                connection,
                name,
                ops,
                self._cluster.history,
                self.plan.pause_ms,
                patient=self._profile.patient,
                lagging=self._profile.lag > 0,
            )

        return main

    def _two_doors(self, name: str, ops: list[ClientOp]) -> Main:
        async def main(connection: Connection) -> None:
            cluster = self._cluster
            await doors.client(connection, name, ops, cluster.history, seed=cluster.seed, members=cluster.members)
            cluster.history.finished[name] = None

        return main

    def booted(self, find: Find) -> None:
        cluster = self._cluster
        rogue = Rogue(cluster.loop, cluster.seed, cluster.truth, cluster.faults, find=find)
        self.on_call(rogue.called)
        if self._profile.forgers:
            others = [cluster.addresses[forgers.FORGER]]
            forger = Forger(cluster.loop, cluster.seed, cluster.truth, cluster.faults, others=others)
            cluster.truth.audit.append(forger.look)

    # --- While it runs --------------------------------------------------------------------------------------

    def peers(self, store: Store, member: ClusterMember, host: SimMachine, env: SimEnv) -> peer_stores.Peers | None:
        return None if self.elsewhere is None else self.elsewhere.peers(store, member, host, env)

    def chaos(self) -> None:
        cluster = self._cluster
        if self.elsewhere is not None:
            cluster.loop.start(cluster.loop.root, self.elsewhere.change_grants(), name="grants")
        if self._profile.flows:
            deploying = self.flows.deploy(cluster.members, cluster.faults, cluster.start_again)
            cluster.loop.start(cluster.loop.root, deploying, name="deployments")

    def heal(self) -> None:
        cluster = self._cluster
        self.outside.heal()
        self.upgrade(fragile.FIRST)
        self.flows.settle(cluster.members, cluster.start_again)
        if self._profile.flows:
            cluster.loop.start(cluster.loop.root, flow_hosts.wake(cluster.admin), name="operator")

    def upgrade(self, version: str) -> None:
        """Let all hosts of the fragile program end, and start them with this version of it."""
        self.fragile.upgrade(version)
        for member in hosting(self._cluster.members, self.fragile.code):
            self._cluster.start_again(member)

    # --- What is known of it --------------------------------------------------------------------------------

    def patience_seconds(self) -> float:
        profile, settings = self._profile, self._cluster.settings
        turn_ms = settings.worker.lease_ttl_ms + settings.adapter.claim_ttl_ms + 3 * 3_000
        longest = max(map(len, self.plan.ops), default=0)
        slow_seconds = (QUEUED_SECONDS if profile.flows else 0) + (LAGGING_SECONDS if profile.lag else 0)
        usual = 60 + 6 * turn_ms / 1000 + (self.plan.pause_ms / 1000 + OP_SECONDS + slow_seconds) * longest
        return usual + self._backlog_seconds() + self.fragile.patience_seconds(self.plan)

    def _backlog_seconds(self) -> float:
        """How long a host that reads journals late may need to look through what waited before it started: two reads
        for each segment of it.
        """
        if not self._profile.lag:
            return 0
        segment_entries = max(1, self._cluster.settings.worker.segment_entries)
        return 2 * max(LAG_SECONDS) * self._profile.backlog / segment_entries

    def crash_budget(self, settings: Settings) -> int:
        del settings
        return self.fragile.budget

    def kills(self, at: ids.Address) -> bool:
        addresses = self._cluster.addresses
        return at in [addresses[name] for name, program in self.worlds if program == fragile.NAME]

    def truths(self) -> list[Truth]:
        return [] if self.elsewhere is None else [self.elsewhere.truth]

    def left(self) -> list[str]:
        return [] if self.elsewhere is None else self.elsewhere.left(self._cluster.history)

    def waited_for(self, op: ClientOp) -> list[str]:
        return flow_domains.worlds_of(op)

    def on_call(self, look: Callable[[Called], None]) -> None:
        self.outside.on_call.append(look)

    def performs(self, label: str) -> list[Called]:
        return [each for each in self.outside.under_way if each.host == label]

    def complaints(self) -> list[tuple[str, str]]:
        return [("BUG", f"run {name} would never have ended when its world was let go") for name in hostile.ENDLESS]

    def planned(self) -> list[ClientOp]:
        """All that clients had to do."""
        ops_max = self._profile.ops_max
        return [op for each in (*self.plan.ops, *self.plan.doors) for op in each[:ops_max]] + self.plan.backlog

    def acted(self) -> list[ClientOp]:
        """What of it ordinary clients had to do."""
        return [op for each in self.plan.ops for op in each[: self._profile.ops_max]]


def of(cluster: Cluster) -> Crew:
    """The crew of a cluster that has one."""
    assert isinstance(cluster.company, Crew)
    return cluster.company


def _wanted(profile: Profile) -> workloads.Wanted:
    return workloads.Wanted(
        anonymous=profile.anonymous,
        doors=profile.doors,
        backlog=profile.backlog,
        hostile=profile.hostile,
        fragile=profile.fragile,
        forks=profile.forks,
        abroad=profile.abroad,
        sketches=profile.sketches,
        flows=profile.flows,
        forgers=profile.forgers,
        timed=1 if profile.excursion else 0,
        runs=2 if profile.patient else 0,
    )
