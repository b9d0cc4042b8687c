"""A cluster in one process: hosts that run the real roles, clients on hosts of their own, one store, one seed.

Hosts are put together as `api.wiring` puts them together, on an engine that misbehaves. A host that dies is
started again after a while, with empty memory and the same name. Phases: boot (calm), chaos, heal (every
host, or only a core while the rest stays dead), quiesce (until nothing is left to do, within a bound of virtual time).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import msgspec

from worldline.api import wiring
from worldline.api.universe_api import Universe
from worldline.base import env as envs
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.host import process as hosts
from worldline.host.feature_list import FEATURES
from worldline.kernel.authoring.program import Program
from worldline.layers import store_format as formats
from worldline.layers import universes
from worldline.model import ids
from worldline.model.roles import EMBEDDED, Role
from worldline.runtime import operator_calls, peer_stores, store_opening
from worldline.runtime.universes.served_universes import Universes
from worldline.sim.faults import excursions, faulty_objects
from worldline.sim.faults.faulty_store import Faults, HostEngine
from worldline.sim.faults.guards import Intact
from worldline.sim.faults.profiles import Profile
from worldline.sim.hosts import remaining
from worldline.sim.hosts.children import SimChildren
from worldline.sim.hosts.company import Company
from worldline.sim.hosts.mishaps import Mishaps
from worldline.sim.hosts.sim_machines import ClusterMember
from worldline.sim.load import history
from worldline.sim.load.scenarios import UNIVERSE
from worldline.sim.runtime.sim_env import SimEnv
from worldline.sim.runtime.sim_loop import SimLoop, SimMachine
from worldline.sim.runtime.truth import AppliedBatch, SimTrace, Truth
from worldline.store import kv
from worldline.store.objects import objects_interface as objects

OPERATOR = "operator"  # the host of the operator that revokes leases

RESTART_SECONDS = (0.05, 1.0, 8.0)
LOOK_SECONDS = 0.5
LAG_SECONDS = (0.5, 1, 2.5)


class Cluster:
    """`programs`: those that every host has. `company`: who else is there."""

    def __init__(
        self,
        loop: SimLoop,
        seed: int,
        profile: Profile,
        programs: Sequence[Program],
        company: Callable[[Cluster], Company],
        *,
        guards: Intact | None = None,
        broken: history.Broken = history.ignored,
        keep: int = 0,
    ) -> None:
        self.loop = loop
        self.seed = seed
        self.profile = profile
        self.programs = list(programs)
        self.guards = guards or Intact()
        settings = self.guards.settings(profile.settings)
        window_ms = profile.window_ms or settings.dedupe_window_ms
        # Clients wait until everything has healed.
        self.settings = msgspec.structs.replace(settings, host_wait_ms=0, blocked_wait_ms=0, dedupe_window_ms=window_ms)
        self.faults = Faults(loop, seed, profile, guards=self.guards, on_crash=self._crashed, on_revoke=self._revoke)
        # Never begun: for what the simulation itself does, and for steady members.
        self.quiet = Faults(loop, seed, Profile(latency_us=0))
        self.history = history.History(lambda: loop.now_us, broken=broken)
        self.env = SimEnv(loop, f"{seed}:store")
        self.members: list[ClusterMember] = []
        self.trace = SimTrace(loop, keep=keep)
        self.crashes = 0
        self.addresses: dict[str, ids.Address] = {}  # of the worlds that are there from the beginning
        self.calm_since_us = 0  # from when on there are no faults any more
        self._draws = random.Random(f"{seed}:chaos")
        self.truth: Truth
        self.excursions: excursions.Excursions
        self.bodies: objects.Objects  # as they are
        self.objects: objects.Objects  # as they are seen
        self.remaining: remaining.Remaining
        self.universe: ids.UniverseId
        self.admin: Connection  # what an operator does goes through it, without faults
        self.company = company(self)

    # --- Boot -----------------------------------------------------------------------------------------------

    async def boot(
        self, audit: Sequence[Callable[[AppliedBatch], None]], other: Sequence[Callable[[AppliedBatch], None]] = ()
    ) -> None:
        """A store with its worlds, made in calm, and every member started. `other`: who audits the other store."""
        self.company.begin()
        self.faults.settle()
        engine = await store_opening.open_engine("memory://", self.env, create=True)
        self.truth = Truth(engine, self.env, self.trace, audit=audit)
        self.excursions = excursions.Excursions(self.loop, self.seed, self.truth, self.faults)
        if self.profile.excursion:
            self.truth.audit.append(self.excursions.look)
        self.remaining = remaining.Remaining(
            self.truth,
            self.history,
            self.members,
            excursions=self.excursions if self.profile.excursion else None,
            own=self.company.is_users,
            waited_for=self.company.waited_for,
        )
        self.bodies = await store_opening.open_objects("memory://", self.env, create=True)
        self.objects = faulty_objects.FaultyObjects(self.bodies, self.faults)
        calm = self.calm()
        await formats.ensure(calm.engine, self.env, create=True)
        self.universe = ids.UniverseId(envs.new_id(self.env))
        batch = kv.Batch()
        universes.create(batch, self.universe, name=UNIVERSE, time_us=self.env.wall_us())
        await calm.engine.commit(batch)
        by_name = {program.name: program for program in [*self.programs, *self.company.edited]}
        self.admin = Connection(calm, self.universe, UNIVERSE, self.settings)
        for name, program in self.company.worlds:
            await Universe(self.admin).create(name, by_name[program])
            self.addresses[name] = await Handle(self.admin, name).address()
        await self.company.boot(other)
        self._enlist()
        for member in self.members:
            self.start(member)

    def _enlist(self) -> None:
        """Hosts with all roles, and clients, some of which host as well; or every role on machines of its own."""
        profile = self.profile
        for number in range(profile.hosts):
            self.members.append(
                ClusterMember(f"host-{number}", serve, runs=(Role.WORLDS,) if profile.split else EMBEDDED)
            )
        self.members += self.company.members()
        alone = {Role.ORCHESTRATOR: profile.orchestrators, Role.JANITOR: profile.janitors}
        if profile.split:
            alone |= {Role.ADAPTER: 2, Role.TIMERS: 2}
        for role, count in alone.items():
            self.members += [ClusterMember(f"{role}-{number}", serve, runs=(role,)) for number in range(count)]
        self.members += self.company.clients(self._hosting)

    def _hosting(self) -> Sequence[Role]:
        """The roles of a client."""
        return EMBEDDED if not self.profile.split and self._draws.random() < 0.4 else ()

    def calm(self) -> store_opening.Store:
        """The store as the simulation itself sees it: no faults, whatever the phase."""
        engine = HostEngine(self.truth, self.quiet, self.loop.root, self.env)
        return store_opening.Store(
            "memory://", engine, self.objects, self.env, FEATURES, in_store_bytes_max=self.profile.in_store_bytes_max
        )

    def start(self, member: ClusterMember) -> None:
        """A new life of a member."""
        host = SimMachine(member.name, member.lives + 1, end=self.faults.crash)
        skew_us = self._draws.randint(-self.profile.skew_us, self.profile.skew_us)
        drift_ppm = self._draws.randint(-self.profile.drift_ppm, self.profile.drift_ppm)
        seed = f"{self.seed}:{host.label}"
        env = SimEnv(self.loop, seed, skew_us=skew_us, drift_ppm=drift_ppm)
        used = self.quiet if member.steady else self.faults
        truth = self.truth if member.away is None else member.away.truth
        engine = HostEngine(truth, used, host, env, lag_us=self._lag_us(host))
        member.begin(host, env, engine)
        bodies = self.bodies if member.steady else self.objects if member.away is None else member.away.seen
        store = store_opening.Store(
            "memory://",
            engine,
            bodies,
            env,
            FEATURES,
            in_store_bytes_max=self.profile.in_store_bytes_max,
            children=SimChildren(host, env),
        )
        reached = self.company.peers(store, member, host, env)
        self.loop.start(host, self._live(member, store, reached), name=f"life of {member.name}")

    def _lag_us(self, host: SimMachine) -> int:
        """Return how late this life of a host reads journals."""
        # By the label of this life, so no other draw depends on how many lives there were.
        draws = random.Random(f"{self.seed}:lag:{host.label}")
        return int(draws.choice(LAG_SECONDS) * 1_000_000) if draws.random() * 100 < self.profile.lag else 0

    async def _live(self, member: ClusterMember, store: store_opening.Store, reached: peer_stores.Peers | None) -> None:
        hosted, settings = self.programs if member.runs == EMBEDDED else [], self.settings
        if member.code is not None:
            assert member.host is not None
            hosted, settings = [member.code.version_of(member.host)], member.code.settings
        id, name = (self.universe, UNIVERSE) if member.away is None else (member.away.universe, member.away.name)
        process = wiring.local_process(store, id, name, hosted, settings, peers=reached)
        universe = process.link
        if member.runs and not hosted:
            alone = hosts.ProcessHost(
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
        if process.host is not None:
            host = process.host
            member.watch(lambda: host.failed)
        process.start()
        member.join(universe)
        try:
            await member.main(universe)
        except Exception as error:
            member.bugs.append(error)  # noted before it is raised: the loop alone would say only that a task has failed
            raise

    def _crashed(self, host: SimMachine) -> None:
        self.crashes += 1
        self.trace.note(host, "crashed")
        member = next((each for each in self.members if each.host is host), None)
        if member is not None:  # else it lives again already: everything has healed in the meantime
            self.loop.call_later(self._draws.choice(RESTART_SECONDS), self._restart, member)

    def _restart(self, member: ClusterMember) -> None:
        if not member.alive and not member.stays_dead:
            self.start(member)

    # --- Chaos ----------------------------------------------------------------------------------------------

    async def chaos(self) -> None:
        """Faults everywhere, and some of the larger kind at times of their own."""
        self.faults.begin()
        if self.profile.excursion:
            self.loop.start(self.loop.root, self.excursions.wander(), name="excursions")
        self.company.chaos()
        mishaps = Mishaps(self.loop, self.faults, self.members, self.truth, self._draws)
        await mishaps.run(self.check_roles)

    async def _revoke(self, at: ids.Address) -> None:
        """An operator revokes a lease, as may happen at any time."""
        # Without faults: an operator who fails would only make the fault less likely.
        operator = HostEngine(self.truth, self.quiet, SimMachine(OPERATOR), self.env)
        await operator_calls.revoke_lease(operator, self.env, at)

    # --- Heal and quiesce -----------------------------------------------------------------------------------

    def heal(self) -> None:
        """No more faults. Unless only a core heals, every host is started again."""
        self.faults.end()  # first: nothing that heals below may be struck again
        self.excursions.come_back()
        self.calm_since_us = self.loop.now_us
        ordinary = [member for member in self.members if member.name.startswith("host")]
        if self.profile.heal == "core" and len(ordinary) > 1:
            lost = ordinary[-1]
            # One host stays dead for good: its leases and claims have to expire, and the others have to do its work.
            lost.stay_dead()
            if lost.host is not None:
                self.loop.crash(lost.host)
        self.company.heal()
        for member in self.members:
            if member.host is not None and member.host.alive:
                self.loop.thaw(member.host)
            if member.engine is not None:
                member.engine.link.heal()
            self._restart(member)

    def start_again(self, member: ClusterMember) -> None:
        """End a member's life, and begin the next."""
        assert member.host is not None
        self.loop.crash(member.host)
        self._restart(member)

    def quiet_after_seconds(self) -> float:
        """The bound of liveness: failover, scans and the longest back-off, several times over."""
        return self.company.patience_seconds()

    async def quiesce(self) -> list[str]:
        """Wait until nothing is left to do. Returns what still is, if that takes too long."""
        ends_us = self.loop.now_us + int(self.quiet_after_seconds() * 1_000_000)
        while left := self.left():
            self.check_roles()
            # A bug is reported at once: waiting on would only add what follows from it.
            if self.loop.now_us > ends_us or any(member.bugs for member in self.members):
                return left
            await asyncio.sleep(LOOK_SECONDS)
        return []

    async def catch_up(self) -> list[str]:
        """Let what was excused be done as well: the clock is set to where it has been. Returns what is left then."""
        if not self.left(excused=False):
            return []
        self.excursions.catch_up()
        self.calm_since_us = self.loop.now_us
        return await self.quiesce()

    def left(self, *, excused: bool = True) -> list[str]:
        """Return what is still to be done, for people."""
        return self.remaining.left(excused=excused) + self.company.left()

    def truths(self) -> list[Truth]:
        """The stores as they are."""
        return [self.truth, *self.company.truths()]

    def check_roles(self) -> None:
        """Note the bugs that have stopped a role; a host with a stopped role is not let off by a restart."""
        for member in self.members:
            failed = member.failed() if member.alive else None
            if failed is not None and failed not in member.bugs:
                member.bugs.append(failed)

    def stop(self) -> None:
        """End every member permanently."""
        for member in self.members:
            member.stay_dead()
            if member.host is not None:
                self.loop.crash(member.host)


async def serve(connection: Connection) -> None:
    del connection
    await asyncio.get_running_loop().create_future()
