"""A cluster in one process: hosts that run the real roles, clients on hosts of their own, one store, one seed.

Hosts are put together as `client.connection` puts them together, on an engine that misbehaves. A host that dies is
started again after a while, with empty memory and the same name. Phases: boot (calm), chaos, heal (every
host, or only a core while the rest stays dead), quiesce (until nothing is left to do, within a bound of virtual time).
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from worldline.base import env as envs
from worldline.client.connection import Connection
from worldline.client.handle import Handle
from worldline.client.universe import Universe
from worldline.host import compose, peers
from worldline.host import process as hosts
from worldline.host.process import EMBEDDED, Role
from worldline.layers import format as formats
from worldline.layers import universes
from worldline.model import ids
from worldline.roles.cluster import operations
from worldline.roles.universes.served import Universes
from worldline.sim.faults import ablations, excursions, faulty_objects
from worldline.sim.faults.faulty_store import Faults, HostEngine
from worldline.sim.faults.profiles import Profile
from worldline.sim.hosts import backlog, doors, elsewhere, flow_hosts, fragile_hosts, remaining
from worldline.sim.hosts.children import SimChildren
from worldline.sim.hosts.machines import Away, Member, hosting
from worldline.sim.hosts.mishaps import Mishaps
from worldline.sim.load import (
    clerks,
    flow_domains,
    forgers,
    forks,
    fragile,
    history,
    hostile,
    offices,
    programs,
    scenarios,
    sketches,
    workloads,
)
from worldline.sim.runtime.env import SimEnv
from worldline.sim.runtime.loop import Host, SimLoop
from worldline.sim.runtime.truth import Applied, Trace, Truth
from worldline.store import kv
from worldline.store.objects import interface as objects

OPERATOR = "operator"  # the host of the operator that revokes leases

UNIVERSE = workloads.UNIVERSE
RESTART_SECONDS = (0.05, 1.0, 8.0)
LOOK_SECONDS = 0.5
OP_SECONDS = 2.0  # of a client, on the average, when nothing goes wrong
QUEUED_SECONDS = 6.0  # so much longer takes an intent of a flow domain that is behind others, whose effects are slow
LAG_SECONDS = (0.5, 1, 2.5)
# An operation of a client that reads journals late: so many reads, one after the other, until its answer shows.
LAGGING_SECONDS = 5 * max(LAG_SECONDS)
EDITED = (fragile.VERSIONS[fragile.FIRST], flow_domains.VERSIONS[flow_domains.FIRST])  # programs that change


class Cluster:
    def __init__(
        self,
        loop: SimLoop,
        seed: int,
        profile: Profile,
        plan: workloads.Plan,
        *,
        without: str = "",
        scenario: scenarios.Scenario | None = None,
        broken: history.Broken = history.ignored,
        keep: int = 0,
    ) -> None:
        self.loop = loop
        self.seed = seed
        self.profile = profile
        self.plan = plan
        own = [*programs.PROGRAMS, hostile.hostiles, forks.branches, offices.offices, sketches.sketches]
        own += [flow_domains.couriers, clerks.clerks] if profile.flows else []
        own += [forgers.court] if profile.forgers else []
        self.programs = own if scenario is None else scenario.programs
        self.driven = None if scenario is None else scenarios.Driven(scenario)
        settings = ablations.settings_without(profile.settings, without)
        window_ms = profile.window_ms or settings.dedupe_window_ms
        # Clients wait until everything has healed.
        self.settings = msgspec.structs.replace(settings, host_wait_ms=0, blocked_wait_ms=0, dedupe_window_ms=window_ms)
        self.fragile = fragile_hosts.FragileHosts(seed, profile, self.settings, without=without)
        self.flows = flow_hosts.FlowHosts(seed, profile, self.settings)
        self.faults = Faults(loop, seed, profile, without=without, on_crash=self._crashed, on_revoke=self._revoke)
        self.quiet = Faults(loop, seed, Profile(latency_us=profile.latency_us if scenario else 0))
        self.history = history.History(lambda: loop.now_us, broken=broken)
        self.outside = programs.Outside(f"{seed}:outside", profile.adapters, lambda: loop.now_us)
        self.env = SimEnv(loop, f"{seed}:store")
        self.members: list[Member] = []
        self.trace = Trace(loop, keep=keep)
        self.crashes = 0
        self.addresses: dict[str, ids.Address] = {}  # of the plan's worlds
        self.calm_since_us = 0  # from when on there are no faults any more
        self._draws = random.Random(f"{seed}:chaos")
        self.elsewhere: elsewhere.Elsewhere | None = None
        if profile.abroad and scenario is None:
            self.elsewhere = elsewhere.Elsewhere(loop, seed, self.faults, self.quiet, self.trace)
        self.truth: Truth
        self.excursions: excursions.Excursions
        self.bodies: objects.Objects  # as they are
        self.objects: objects.Objects  # as they are seen
        self.remaining: remaining.Remaining
        self.universe: ids.UniverseId
        self._admin: Connection  # what an operator does goes through it, without faults

    # --- Boot -----------------------------------------------------------------------------------------------

    async def boot(
        self, audit: Sequence[Callable[[Applied], None]], other: Sequence[Callable[[Applied], None]] = ()
    ) -> None:
        """A store with its worlds, made in calm, and every member started. `other`: who audits the other store."""
        self.faults.settle()
        engine = await compose.open_engine("memory://", self.env, create=True)
        self.truth = Truth(engine, self.env, self.trace, audit=audit)
        self.excursions = excursions.Excursions(self.loop, self.seed, self.truth, self.faults)
        if self.profile.excursion:
            self.truth.audit.append(self.excursions.look)
        self.remaining = remaining.Remaining(
            self.truth,
            self.history,
            self.members,
            excursions=self.excursions if self.profile.excursion else None,
            own=self.driven is not None,
        )
        self.bodies = await compose.open_objects("memory://", self.env, create=True)
        self.objects = faulty_objects.FaultyObjects(self.bodies, self.faults)
        calm = self.calm()
        await formats.ensure(calm.engine, self.env, create=True)
        self.universe = ids.UniverseId(envs.new_id(self.env))
        batch = kv.Batch()
        universes.create(batch, self.universe, name=UNIVERSE, time_us=self.env.wall_us())
        await calm.engine.commit(batch)
        by_name = {program.name: program for program in [*self.programs, *EDITED]}
        self._admin = Connection(calm, self.universe, UNIVERSE, [], self.settings)
        for name, program in self.plan.worlds:
            await Universe(self._admin).create(name, by_name[program])
            self.addresses[name] = await Handle(self._admin, name).address()
        if self.elsewhere is not None:
            home = Away(UNIVERSE, self.universe, self.truth, self.bodies, self.objects)
            seen = functools.partial(faulty_objects.FaultyObjects, faults=self.faults)
            await self.elsewhere.boot(home, self.settings, audit=other, sees=seen)
        await backlog.fill(calm.engine, self.plan.backlog, self.addresses, self.history, self.truth)
        self._enlist()
        for member in self.members:
            self.start(member)

    def _enlist(self) -> None:
        """Hosts with all roles, and clients, some of which host as well; or every role on machines of its own."""
        profile = self.profile
        for number in range(profile.hosts):
            self.members.append(Member(f"host-{number}", _serve, runs=(Role.WORLDS,) if profile.split else EMBEDDED))
        self.members += self.fragile.members(_serve) + self.flows.members(_serve)
        alone = {Role.ORCHESTRATOR: profile.orchestrators, Role.JANITOR: profile.janitors}
        if profile.split:
            alone |= {Role.ADAPTER: 2, Role.TIMERS: 2}
        for role, count in alone.items():
            self.members += [Member(f"{role}-{number}", _serve, runs=(role,)) for number in range(count)]
        for number, ops in enumerate(self.plan.ops):
            runs = EMBEDDED if not profile.split and self._draws.random() < 0.4 else ()
            main = self._client(f"client-{number}", ops[: profile.ops_max])
            self.members.append(Member(f"client-{number}", main, runs=runs, client=True))
        for number, ops in enumerate(self.plan.doors):
            name = f"{workloads.DOORS}-{number}"
            self.members.append(Member(name, self._two_doors(name, ops[: profile.ops_max]), client=True, steady=True))
        if self.elsewhere is not None:
            self.members += self.elsewhere.members(_serve)
        if self.driven is not None:
            self.members.append(Member("scenario", self._drive, client=True, steady=True))

    def calm(self) -> compose.Store:
        """The store as the simulation itself sees it: no faults, whatever the phase."""
        engine = HostEngine(self.truth, self.quiet, self.loop.root, self.env)
        return compose.Store(
            "memory://", engine, self.objects, self.env, in_store_bytes_max=self.profile.in_store_bytes_max
        )

    def _client(self, name: str, ops: list[history.Op]) -> Callable[[Connection], Awaitable[None]]:
        async def main(universe: Connection) -> None:
            await workloads.client(
                universe,
                name,
                ops,
                self.history,
                self.plan.pause_ms,
                patient=self.profile.patient,
                lagging=self.profile.lag > 0,
            )

        return main

    def _two_doors(self, name: str, ops: list[history.Op]) -> Callable[[Connection], Awaitable[None]]:
        async def main(universe: Connection) -> None:
            await doors.client(universe, name, ops, self.history, seed=self.seed, members=self.members)
            self.history.finished[name] = None

        return main

    async def _drive(self, universe: Connection) -> None:
        assert self.driven is not None
        await self.driven.begin(universe)
        self.history.finished["scenario"] = None
        await _serve(universe)

    def start(self, member: Member) -> None:
        """A new life of a member."""
        host = Host(member.name, member.lives + 1, end=self.faults.crash)
        skew_us = self._draws.randint(-self.profile.skew_us, self.profile.skew_us)
        drift_ppm = self._draws.randint(-self.profile.drift_ppm, self.profile.drift_ppm)
        seed = f"{self.seed}:{host.label}"
        env = SimEnv(self.loop, seed, skew_us=skew_us, drift_ppm=drift_ppm)
        used = self.quiet if member.steady else self.faults
        truth = self.truth if member.away is None else member.away.truth
        engine = HostEngine(truth, used, host, env, lag_us=self._lag_us(host))
        member.begin(host, env, engine)
        bodies = self.bodies if member.steady else self.objects if member.away is None else member.away.seen
        store = compose.Store(
            "memory://",
            engine,
            bodies,
            env,
            in_store_bytes_max=self.profile.in_store_bytes_max,
            children=SimChildren(host, env),
        )
        reached = None if self.elsewhere is None else self.elsewhere.peers(store, member, host, env)
        self.loop.start(host, self._live(member, store, reached), name=f"life of {member.name}")

    def _lag_us(self, host: Host) -> int:
        """How late this life of a host reads journals."""
        draws = random.Random(f"{self.seed}:lag:{host.label}")
        return int(draws.choice(LAG_SECONDS) * 1_000_000) if draws.random() * 100 < self.profile.lag else 0

    async def _live(self, member: Member, store: compose.Store, reached: peers.Peers | None) -> None:
        hosted, settings = self.programs if member.runs == EMBEDDED else [], self.settings
        if member.code is not None:
            assert member.host is not None
            hosted, settings = [member.code.version_of(member.host)], member.code.settings
        id, name = (self.universe, UNIVERSE) if member.away is None else (member.away.universe, member.away.name)
        universe = Connection(store, id, name, hosted, settings, peers=reached)
        if member.runs and not hosted:
            alone = hosts.Host(
                store,
                Universes.only(id),
                self.programs,
                blobs=lambda _: universe.blobs,
                settings=self.settings,
                roles=member.runs,
                peers=reached,
            )
            member.watch(lambda: alone.failed)
            alone.start()
        if universe.host is not None:
            host = universe.host
            member.watch(lambda: host.failed)
        universe.start()
        member.join(universe)
        try:
            await member.main(universe)
        except Exception as error:
            member.bugs.append(error)
            raise

    def _crashed(self, host: Host) -> None:
        self.crashes += 1
        self.trace.note(host, "crashed")
        member = next((each for each in self.members if each.host is host), None)
        if member is not None:  # else it lives again already: everything has healed in the meantime
            self.loop.call_later(self._draws.choice(RESTART_SECONDS), self._restart, member)

    def _restart(self, member: Member) -> None:
        if not member.alive and not member.stays_dead:
            self.start(member)

    # --- Chaos ----------------------------------------------------------------------------------------------

    async def chaos(self) -> None:
        """Faults everywhere, and some of the larger kind at times of their own."""
        self.faults.begin()
        if self.profile.excursion:
            self.loop.start(self.loop.root, self.excursions.wander(), name="excursions")
        if self.elsewhere is not None:
            self.loop.start(self.loop.root, self.elsewhere.change_grants(), name="grants")
        if self.profile.flows:
            deploying = self.flows.deploy(self.members, self.faults, self._start_again)
            self.loop.start(self.loop.root, deploying, name="deployments")
        mishaps = Mishaps(self.loop, self.faults, self.members, self.truth, self._draws)
        await mishaps.run(self.check_roles)

    async def _revoke(self, at: ids.Address) -> None:
        """An operator revokes a lease, as may happen at any time."""
        operator = HostEngine(self.truth, self.quiet, Host(OPERATOR), self.env)
        await operations.revoke_lease(operator, self.env, at)

    # --- Heal and quiesce -----------------------------------------------------------------------------------

    def heal(self) -> None:
        """No more faults. Unless only a core heals, every host is started again."""
        self.faults.end()
        self.outside.heal()
        self.excursions.come_back()
        self.calm_since_us = self.loop.now_us
        ordinary = [member for member in self.members if member.name.startswith("host")]
        if self.profile.heal == "core" and len(ordinary) > 1:
            lost = ordinary[-1]
            lost.stay_dead()
            if lost.host is not None:
                self.loop.crash(lost.host)
        self.upgrade(fragile.FIRST)
        self.flows.settle(self.members, self._start_again)
        if self.profile.flows:
            self.loop.start(self.loop.root, flow_hosts.wake(self._admin), name="operator")
        for member in self.members:
            if member.host is not None and member.host.alive:
                self.loop.thaw(member.host)
            if member.engine is not None:
                member.engine.link.heal()
            self._restart(member)

    def upgrade(self, version: str) -> None:
        """Let all hosts of the fragile program end, and start them with this version of it."""
        self.fragile.upgrade(version)
        for member in hosting(self.members, self.fragile.code):
            self._start_again(member)

    def _start_again(self, member: Member) -> None:
        assert member.host is not None
        self.loop.crash(member.host)
        self._restart(member)

    def quiet_after_seconds(self) -> float:
        """The bound of liveness: failover, scans and the longest back-off, several times over."""
        if self.driven is not None:
            return scenarios.PATIENCE_SECONDS
        worker, adapter = self.settings.worker, self.settings.adapter
        turn_ms = worker.lease_ttl_ms + adapter.claim_ttl_ms + 3 * 3_000
        longest = max(map(len, self.plan.ops), default=0)
        slow_seconds = (QUEUED_SECONDS if self.profile.flows else 0) + (LAGGING_SECONDS if self.profile.lag else 0)
        usual = 60 + 6 * turn_ms / 1000 + (self.plan.pause_ms / 1000 + OP_SECONDS + slow_seconds) * longest
        return usual + self._backlog_seconds() + self.fragile.patience_seconds(self.plan)

    def _backlog_seconds(self) -> float:
        """How long a host that reads journals late may need to look through what waited before it started: two reads
        for each segment of it.
        """
        if not self.profile.lag:
            return 0
        return 2 * max(LAG_SECONDS) * self.profile.backlog / max(1, self.settings.worker.segment_entries)

    async def quiesce(self) -> list[str]:
        """Wait until nothing is left to do. Returns what still is, if that takes too long."""
        ends_us = self.loop.now_us + int(self.quiet_after_seconds() * 1_000_000)
        while left := self.left():
            self.check_roles()
            if self.loop.now_us > ends_us or any(member.bugs for member in self.members):
                return left
            await asyncio.sleep(LOOK_SECONDS)
        return []

    async def catch_up(self) -> list[str]:
        """Let what was excused be done as well: the clock goes on to where it has been. Returns what is left then."""
        if not self.left(excused=False):
            return []
        self.excursions.catch_up()
        self.calm_since_us = self.loop.now_us
        return await self.quiesce()

    def left(self, *, excused: bool = True) -> list[str]:
        """What is still to be done."""
        others = [] if self.elsewhere is None else self.elsewhere.left(self.history)
        return self.remaining.left(excused=excused) + others

    def truths(self) -> list[Truth]:
        """The stores as they are."""
        return [self.truth] if self.elsewhere is None else [self.truth, self.elsewhere.truth]

    def check_roles(self) -> None:
        """Note the bugs that have stopped a role; a host with a stopped role is not let off by a restart."""
        for member in self.members:
            failed = member.failed() if member.alive else None
            if failed is not None and failed not in member.bugs:
                member.bugs.append(failed)

    def stop(self) -> None:
        """End every member, for good."""
        for member in self.members:
            member.stay_dead()
            if member.host is not None:
                self.loop.crash(member.host)


async def _serve(universe: Connection) -> None:
    del universe
    await asyncio.get_running_loop().create_future()
