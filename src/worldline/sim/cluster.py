"""A cluster in one process: hosts that run the real roles, clients on hosts of their own, one store, one seed.

Hosts are put together as `control.sdk.Universe` puts them together, on an engine that misbehaves. A host that dies is
started again after a while, with empty memory and the same name. Phases: boot (calm), chaos, heal (everybody, or only a
core while the rest stays dead), quiesce (until nothing is left to do, within a bound of virtual time).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Literal

from worldline.base import env as envs
from worldline.base import errors
from worldline.control import compose, sdk
from worldline.layers import format as formats
from worldline.layers import inbox as inboxes
from worldline.layers import universes
from worldline.model import ids, inbox, payload
from worldline.sim import ablations, faults, machines, reading, workloads
from worldline.sim.audit import ROGUE
from worldline.sim.env_sim import SimEnv
from worldline.sim.faults import Faults, HostEngine, Profile, Trace, Truth
from worldline.sim.loop import Host, SimLoop
from worldline.store import kv, objects

Runs = machines.Role | Literal["all", "nothing"]

UNIVERSE = "simulated"
RESTART_SECONDS = (0.05, 1.0, 8.0)
LOOK_SECONDS = 0.5


class Member:
    """A machine of the cluster, over all its lives."""

    def __init__(self, name: str, main: Callable[[sdk.Universe], Awaitable[None]], *, runs: Runs) -> None:
        self.name = name
        self.main = main
        self.runs = runs
        self.lives = 0
        self.host: Host | None = None
        self.engine: HostEngine | None = None
        self.env: SimEnv | None = None
        self.failed: Callable[[], BaseException | None] = lambda: None
        self.bugs: list[BaseException] = []
        self.stays_dead = False

    @property
    def alive(self) -> bool:
        return self.host is not None and self.host.alive


class Cluster:
    def __init__(self, loop: SimLoop, seed: int, profile: Profile, plan: workloads.Plan, *, without: str) -> None:
        self.loop = loop
        self.seed = seed
        self.profile = profile
        self.plan = plan
        self.settings = ablations.settings_without(profile.settings, without)
        self.faults = Faults(loop, seed, profile, without=without)
        self.faults.on_crash = self._crashed
        self.history = workloads.History()
        self.outside = workloads.Outside(f"{seed}:outside", profile.adapters, lambda: loop.now_us)
        self.env = SimEnv(loop, f"{seed}:store")
        self.members: list[Member] = []
        self.trace = Trace(loop)
        self.crashes = 0
        self.find: Callable[[bytes], tuple[ids.Address | None, bool]] = lambda _: (None, False)
        self._draws = random.Random(f"{seed}:chaos")
        self._rogue = random.Random(f"{seed}:rogue")
        self.truth: Truth
        self.objects: objects.Objects
        self.universe: ids.UniverseId

    # --- Boot -----------------------------------------------------------------------------------------------

    async def boot(self, audit: list[Callable[[faults.Applied], None]]) -> None:
        """A store with its worlds, made in calm, and every member started."""
        self.faults.settle()
        engine = await compose.open_engine("memory://", self.env, create=True)
        self.truth = Truth(engine, self.loop, self.trace)
        self.truth.audit = audit
        bodies = await compose.open_objects("memory://", self.env, create=True)
        self.objects = faults.FaultyObjects(bodies, self.faults)
        calm = self.calm()
        await formats.ensure(calm.engine, self.env, create=True)
        self.universe = ids.UniverseId(envs.new_id(self.env))
        batch = kv.Batch()
        universes.create(batch, self.universe, name=UNIVERSE, time_us=self.env.wall_us())
        await calm.engine.commit(batch)
        by_name = {program.name: program for program in workloads.PROGRAMS}
        admin = sdk.Universe(calm, self.universe, UNIVERSE, [], self.settings)
        for name, program in self.plan.worlds:
            await admin.create(name, by_name[program])
        self._enlist()
        for member in self.members:
            self.start(member)

    def _enlist(self) -> None:
        """Hosts with all roles, and clients, some of which host as well; or every role on machines of its own."""
        split = self.profile.split
        for number in range(self.profile.hosts):
            self.members.append(Member(f"host-{number}", _serve, runs="worlds" if split else "all"))
        if split:
            for number in range(2):
                self.members.append(Member(f"adapter-{number}", _serve, runs="adapter"))
                self.members.append(Member(f"timers-{number}", _serve, runs="timers"))
        for number, ops in enumerate(self.plan.ops):
            embedded = not split and self._draws.random() < 0.4
            runs: Runs = "all" if embedded else "nothing"
            self.members.append(Member(f"client-{number}", self._client(f"client-{number}", ops), runs=runs))

    def calm(self) -> compose.Store:
        """The store as the simulation itself sees it: no faults, whatever the phase."""
        quiet = Faults(self.loop, self.seed, Profile(latency_us=0))
        return compose.Store(
            "memory://", HostEngine(self.truth, quiet, self.loop.root, self.env), self.objects, self.env
        )

    def _client(self, name: str, ops: list[workloads.Op]) -> Callable[[sdk.Universe], Awaitable[None]]:
        async def main(universe: sdk.Universe) -> None:
            await workloads.client(universe, name, ops, self.history, self.plan.pause_ms)

        return main

    def start(self, member: Member) -> None:
        """A new life of a member: nothing is left of the one before."""
        member.lives += 1
        host = member.host = Host(member.name, member.lives)
        skew_us = self._draws.randint(-self.profile.skew_us, self.profile.skew_us)
        drift_ppm = self._draws.randint(-self.profile.drift_ppm, self.profile.drift_ppm)
        seed = f"{self.seed}:{host.label}"
        member.env = SimEnv(self.loop, seed, skew_us=skew_us, drift_ppm=drift_ppm)
        member.engine = HostEngine(self.truth, self.faults, host, member.env)
        store = compose.Store("memory://", member.engine, self.objects, member.env)
        self.loop.start(host, self._live(member, store), name=f"life of {member.name}")

    async def _live(self, member: Member, store: compose.Store) -> None:
        if member.runs != "all" and member.runs != "nothing":  # noqa: PLR1714 - so that the type is narrowed
            solo = machines.Solo(member.runs, store, self.universe, self.settings)
            member.failed = lambda: solo.failed
            solo.start()
        programs = workloads.PROGRAMS if member.runs == "all" else []
        universe = sdk.Universe(store, self.universe, UNIVERSE, programs, self.settings)
        if universe.host is not None:
            host = universe.host
            member.failed = lambda: host.failed
        universe.start()
        try:
            await member.main(universe)
        except (errors.Error, AssertionError) as error:
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
        self.faults.active = True
        ends_us = self.loop.now_us + self.profile.chaos_seconds * 1_000_000
        while self.loop.now_us < ends_us:
            await asyncio.sleep(self._draws.random() * 3)
            self.check_roles()
            member = self._draws.choice(self.members)
            if member.host is None or not member.host.alive or member.host.frozen:
                continue
            assert member.engine is not None
            assert member.env is not None
            event = self._draws.choice(["crash", "pause", "partition", "jump", "nothing"])
            if event == "crash" and self.profile.crash:
                self.faults.crash(member.host)
            elif event == "pause" and self.profile.pause:
                self.faults.pause(member.host)
            elif event == "partition" and self.profile.partition:
                self.faults.cut(member.engine.link)
            elif event == "jump" and self.profile.skew_us:
                member.env.skew_us += self._draws.choice([-3_600, -5, 5, 3_600]) * 1_000_000

    def called(self, call: workloads.Called) -> None:
        """Somebody outside may answer on his own: much later, once more, or for nothing that was ever asked."""
        if self.faults.active and self._rogue.random() * 100 < self.profile.adapters.double:
            self.loop.start(Host(ROGUE), self._answer_again(call), name="answers again")

    async def _answer_again(self, call: workloads.Called) -> None:
        await asyncio.sleep(self._rogue.choice([5, 15]))
        intent, wrong = bytes.fromhex(call.key), self._rogue.random() < 0.3
        at, open_still = self.find(intent)
        if at is None or (open_still and not wrong):
            return  # an early answer would be an answer
        receipt = inbox.Receipt(
            self._rogue.randbytes(16) if wrong else intent, inbox.ReceiptStatus.OK, payload.EMPTY, call.attempt
        )
        batch = kv.Batch()
        client_id = f"rogue-{self._rogue.randbytes(8).hex()}"
        now_us = self.truth.time_us()
        inboxes.enqueue(batch, at, receipt, client_id=client_id, time_us=now_us, window_us=10**12)
        await self.truth.commit(Host(ROGUE), batch)

    # --- Heal and quiesce -----------------------------------------------------------------------------------

    def heal(self) -> None:
        """No more faults. Unless only a core heals, everybody lives again."""
        self.faults.active = False
        self.outside.active = False
        hosting = [member for member in self.members if member.name.startswith("host")]
        if self.profile.heal == "core" and len(hosting) > 1:
            lost = hosting[-1]
            lost.stays_dead = True
            if lost.host is not None:
                self.loop.crash(lost.host)
        for member in self.members:
            if member.host is not None and member.host.alive:
                self.loop.thaw(member.host)
            if member.engine is not None:
                member.engine.link.heal()
            self._restart(member)

    def quiet_after_seconds(self) -> float:
        """The bound of liveness: failover, scans and the longest back-off, several times over."""
        worker, adapter = self.settings.worker, self.settings.adapter
        turn_ms = worker.lease_ttl_ms + adapter.claim_ttl_ms + 3 * 3_000
        return 60 + 6 * turn_ms / 1000 + self.plan.pause_ms * max(map(len, self.plan.ops)) / 1000

    async def quiesce(self) -> list[str]:
        """Wait until nothing is left to do. Returns what still is, if that takes too long."""
        ends_us = self.loop.now_us + int(self.quiet_after_seconds() * 1_000_000)
        while left := self.left():
            self.check_roles()
            if self.loop.now_us > ends_us:
                return left
            await asyncio.sleep(LOOK_SECONDS)
        return []

    def left(self) -> list[str]:
        """What is still to be done: clients that are not through, unread items, open work."""
        left = [each.name for each in self.members if each.name.startswith("client")]
        left = [name for name in left if name not in self.history.finished]
        for key in self.truth.copy:
            where = reading.place(key)
            if where.what in ("inbox", "open"):
                left.append(f"{where.what} of {self.name_of(where.at)}")
        return left

    def name_of(self, at: ids.Address | None) -> str:
        return "?" if at is None else at.world.hex()[-8:]

    def check_roles(self) -> None:
        """Note the bugs that have stopped a role; a host with a stopped role is not let off by a restart."""
        for member in self.members:
            failed = member.failed() if member.alive else None
            if failed is not None and failed not in member.bugs:
                member.bugs.append(failed)

    def stop(self) -> None:
        """End every member, for good."""
        for member in self.members:
            member.stays_dead = True
            if member.host is not None:
                self.loop.crash(member.host)


async def _serve(universe: sdk.Universe) -> None:
    del universe
    await asyncio.get_running_loop().create_future()
