"""Universes besides the one that is simulated: one next door, in the same store, and one abroad, in a store of its own.

Each has worlds, and hosts that run them and fail as others do. The other store has a clock of its own, and is reached
by the same faults: each host has a link to it that can be cut. Who may send there is said at the beginning, and for
some worlds changed again and again (`change_grants`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from tests.campaign.load import offices
from worldline.api.universe_api import Universe
from worldline.base import env as envs
from worldline.client.connection import Connection
from worldline.features.abroad import calls as abroad_calls
from worldline.features.abroad import peer_stores
from worldline.host.feature_list import FEATURES
from worldline.host.process import EMBEDDED, Role
from worldline.layers import store_format as formats
from worldline.layers import universes
from worldline.model import ids
from worldline.model.settings import Settings
from worldline.runtime import store_opening
from worldline.sim.faults.faulty_store import Faults, HostEngine
from worldline.sim.hosts.remaining import Remaining
from worldline.sim.hosts.sim_machines import Away, ClusterMember
from worldline.sim.load.history import History
from worldline.sim.runtime.sim_env import SimEnv
from worldline.sim.runtime.sim_loop import SimLoop, SimMachine
from worldline.sim.runtime.truth import AppliedBatch, SimTrace, Truth
from worldline.store import kv
from worldline.store.objects import objects_interface as objects

HOME = "home"  # what hosts abroad call the first store
URLS = {HOME: "memory://home", offices.OVERSEAS: "memory://overseas"}
SKEW_SECONDS_MAX = 2.0  # of the other store's clock
CHANGE_SECONDS = 3.0

Audit = Callable[[AppliedBatch], None]


class Elsewhere:
    def __init__(self, loop: SimLoop, seed: int, faults: Faults, quiet: Faults, trace: SimTrace) -> None:
        self._loop = loop
        self._faults = faults
        self._quiet = quiet
        self._trace = trace
        self._draws = random.Random(f"{seed}:elsewhere")
        skew_us = int(self._draws.uniform(-1, 1) * SKEW_SECONDS_MAX * 1_000_000)
        self.env = SimEnv(loop, f"{seed}:other store", skew_us=skew_us)
        self.truth: Truth  # of the other store
        self.next: Away
        self.abroad: Away
        self._home: Away
        self._settings = Settings()

    async def boot(
        self,
        home: Away,
        settings: Settings,
        *,
        audit: Sequence[Audit],
        sees: Callable[[objects.Objects], objects.Objects],
    ) -> None:
        """Both universes with their worlds. `sees`: objects, as hosts see them."""
        self._settings = settings
        self._home = home
        engine = await store_opening.open_engine("memory://", self.env, create=True)
        self.truth = Truth(engine, self.env, self._trace, audit=audit)
        bodies = await store_opening.open_objects("memory://", self.env, create=True)
        await formats.ensure(self._calm(self.truth, bodies).engine, self.env, create=True)
        self.next = await self._made(offices.NEXT, home.truth, home.bodies, home.seen)
        self.abroad = await self._made(offices.ABROAD, self.truth, bodies, sees(bodies))

    async def _made(self, name: str, truth: Truth, bodies: objects.Objects, seen: objects.Objects) -> Away:
        universe = ids.UniverseId(envs.new_id(self.env))
        made = Away(name, universe, truth, bodies, seen)
        batch = kv.Batch()
        universes.create(batch, universe, name=name, time_us=truth.time_us())
        link = self.reader(made)
        await link.store.engine.commit(batch)
        for world in offices.WORLDS:
            await Universe(link).create(world, offices.offices)
        await abroad_calls.allow(link, self._home.universe.hex(), worlds="office-*", to="open-*", events="*")
        return made

    def _calm(self, truth: Truth, bodies: objects.Objects) -> store_opening.Store:
        return store_opening.Store(
            "memory://", HostEngine(truth, self._quiet, self._loop.root, self.env), bodies, self.env, FEATURES
        )

    def reader(self, away: Away) -> Connection:
        """A universe as the simulation itself sees it, whatever the phase."""
        link = Connection(self._calm(away.truth, away.bodies), away.universe, away.name, [], self._settings)
        link.knows(offices.offices)
        return link

    def members(self, serve: Callable[[Connection], Awaitable[None]]) -> list[ClusterMember]:
        """Hosts of both universes, and a janitor abroad, which forgets ids when their time has come."""
        found = [
            ClusterMember(f"{away.name}-{number}", serve, runs=EMBEDDED, away=away)
            for away in (self.next, self.abroad)
            for number in range(1 if away is self.next else 2)
        ]
        return [*found, ClusterMember("abroad-janitor", serve, runs=(Role.JANITOR,), away=self.abroad)]

    def peers(
        self, store: store_opening.Store, member: ClusterMember, host: SimMachine, env: SimEnv
    ) -> peer_stores.Peers:
        """The other store, as one life of a host sees it."""
        is_abroad = member.away is self.abroad
        other = self._home if is_abroad else self.abroad
        used = self._quiet if member.steady else self._faults

        async def opening(_: str) -> store_opening.Store:
            engine = HostEngine(other.truth, used, host, env)
            return msgspec.structs.replace(store, engine=engine, objects=other.seen)

        name = HOME if is_abroad else offices.OVERSEAS
        return peer_stores.Peers(store, {name: URLS[name]}, opening=opening)

    async def change_grants(self) -> None:
        """Until the faults end: what some worlds take is allowed, and not any more."""
        links = [self.reader(away) for away in (self.next, self.abroad)]
        pattern = {"worlds": "office-*", "to": "fickle-*", "events": "*"}
        while self._faults.active:
            await asyncio.sleep(self._draws.random() * CHANGE_SECONDS)
            change = self._draws.choice([abroad_calls.allow, abroad_calls.deny])
            await change(self._draws.choice(links), self._home.universe.hex(), **pattern)

    def left(self, history: History) -> list[str]:
        """What is still to be done in the other store."""
        remaining = Remaining(self.truth, history, [], excursions=None, own=False)
        return [f"{each} abroad" for each in remaining.left()]
