"""One universe of a store, as one process has it: the engine, the objects, the host if worlds run here, and what the
process remembers of worlds it talks to.

This is the SDK's inner side. Users' programs get a `Universe` from `worldline.open`, which keeps its connection
private. The project's own tools (command line, inspection, simulator, benchmarks) open a connection and use it
directly; the typed API can be made on top of it: `Universe(connection)`, `World(connection, name)`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any

from worldline.base import env as envs
from worldline.base import errors
from worldline.client import ask_order, backpressure, known_worlds
from worldline.effects import secret_sources
from worldline.effects.egress import Egress
from worldline.features.abroad import peer_stores
from worldline.features.encryption import codec_opening
from worldline.host import ctrl_c, process
from worldline.kernel.authoring.program import Program
from worldline.layers import universes
from worldline.model import ids
from worldline.model import settings as settings_model
from worldline.model.settings import Settings
from worldline.observe import sinks as observers
from worldline.runtime import daemon_threads, facts, store_opening
from worldline.runtime import world_reader as readers
from worldline.runtime.universes import served_universes
from worldline.store import kv, transact
from worldline.worker import no_asyncio
from worldline.worker.held_world import HeldWorld

DEFAULT_UNIVERSE = "default"
WARM_MAX = 64  # worlds that are read and not run here, whose states are kept for the next look
HOSTING = (*process.EMBEDDED, process.Role.JANITOR)  # the roles of a process that hosts, unless it is part of a cluster


class Connection:
    def __init__(
        self,
        store: store_opening.Store,
        universe: ids.UniverseId,
        name: str,
        programs: Sequence[Program],
        settings: Settings,
        *,
        egress: Egress | None = None,
        observed: observers.Observed | None = None,
        roles: Sequence[process.Role] = process.EMBEDDED,
        watchdog: bool = False,
        peers: Mapping[str, str] | peer_stores.Peers | None = None,
        shared: process.ProcessHost | None = None,
        secrets: secret_sources.Given | None = None,
    ) -> None:
        """`shared`: a host that serves this universe among others. It is neither started nor closed from here."""
        self.name = name
        self.id = universe
        self.telemetry = facts.NOTHING if observed is None else observed.telemetry
        if shared is not None:
            self.telemetry = shared.telemetry
        self.store = store = store if shared is not None else store_opening.told(store, self.telemetry)
        # After `self.store`: only the store that tells its facts has reads that show in the metrics.
        self.pressure = backpressure.Pressure(store, universe, settings.pressure, telemetry=self.telemetry)
        self.recent = known_worlds.Recent(store.env)
        self.arrivals = ask_order.Arrivals()
        self._observed = observed
        self._began_wall_us = store.env.wall_us()
        self.levels_from(dict)
        self.settings = settings
        self.blobs = peer_stores.blobs_of(store, universe) if shared is None else shared.blobs(universe)
        if shared is not None:
            self.peers = shared.peers
        elif isinstance(peers, peer_stores.Peers):
            self.peers = peers
        else:
            self.peers = peer_stores.Peers(store, peer_stores.check_urls(peers))
        self.host = shared
        self._shares_host = shared is not None
        if programs and shared is None:
            self.host = process.ProcessHost(
                store,
                served_universes.Universes.only(universe, name),
                programs,
                blobs=lambda _: self.blobs,
                settings=settings,
                egress=egress,
                peers=self.peers,
                telemetry=self.telemetry,
                roles=roles,
                watchdog=watchdog,
                secrets=secrets,
            )
        self.programs = {program.name: program for program in programs}
        self.executor = daemon_threads.DaemonPool(1, "worldline-reader", no_asyncio.refuse_asyncio)
        self._warm: dict[ids.Address, readers.WorldReader] = {}  # the last that were used, the latest last
        if self.host is not None and self.host.runs_worlds:
            self.host.worlds.on_taken.append(self._held_here)

    @property
    def metrics_port(self) -> int | None:
        """The port where Prometheus finds metrics, if they are offered."""
        return None if self._observed is None else self._observed.port

    def levels_from(self, levels: Callable[[], dict[str, float]]) -> None:
        """Metrics report these gauges too, beside those of this connection's own host."""
        if self._observed is not None:
            self._observed.levels_from(
                lambda: surroundings(self.store, self._began_wall_us) | self._levels() | levels()
            )

    def _levels(self) -> dict[str, float]:
        levels = {} if self.host is None else self.host.levels()
        return levels | {"worldline_inputs_waiting": self.pressure.waiting}

    def start(self) -> None:
        if self.host is not None and not self._shares_host:
            self.host.start()

    def wake(self) -> None:
        """Tell this process's own workers, if it has some, that a world may be ready."""
        if self.host is not None:
            self.host.worlds.wake()

    async def close(self) -> None:
        try:
            if self.host is not None and not self._shares_host:
                await self.host.close()
        finally:
            if not self._shares_host:
                await self.peers.close()  # a shared host closes its own peers: other universes still use them
            if self.host is not None and self.host.runs_worlds:
                with contextlib.suppress(ValueError):  # closed again, because the first time could not reach the store
                    self.host.worlds.on_taken.remove(self._held_here)
            for reader in self._warm.values():
                reader.close()
            self.executor.shutdown(wait=True)

    def knows(self, program: Program) -> None:
        """Read worlds of this program here. One that is known by the same name stays."""
        self.programs.setdefault(program.name, program)

    def reader(self, at: ids.Address, program: str) -> readers.WorldReader:
        """Return what reads a world of this program, kept for the next time. No code of the program is needed."""
        known = self.programs.get(program)
        reader = self._warm.pop(at, None)  # popped and put back: the order of the dictionary is that of the last use
        if reader is None:
            reader = readers.WorldReader(self.store.engine, self.blobs, known or Program(program), at, self.executor)
        elif known is not None:
            # The reader may be older than `knows`: from now on it reads with the program's code.
            reader.use(known)
        self._warm[at] = reader
        if len(self._warm) > WARM_MAX:  # a whole state each: a process that looks at many worlds must not keep them all
            del self._warm[next(iter(self._warm))]
        return reader

    def _held_here(self, held: HeldWorld) -> None:
        """A world is run in this process: its state is in memory, and a second one is not kept beside it."""
        self._warm.pop(held.at, None)


def surroundings(store: store_opening.Store, began_wall_us: int) -> dict[str, float]:
    """Gauges of a process: since when there is this one, the room that its store has, how its cache does."""
    found: dict[str, float] = {"worldline_process_start_timestamp_seconds": began_wall_us / 1_000_000}
    room = store_opening.disk_room(store.url)
    if room is not None:
        found |= {"worldline_disk_free_bytes": room[0], "worldline_disk_bytes": room[1]}
    if store.cache is not None:
        counted = store.cache.stats()
        found |= {"worldline_cache_hits": counted.hits, "worldline_cache_misses": counted.misses}
    return found


@asynccontextmanager
async def open(
    url: str,
    *,
    host: Program | Sequence[Program] = (),
    programs: Program | Sequence[Program] = (),
    universe: str = DEFAULT_UNIVERSE,
    objects: str | None = None,
    create: bool | None = None,
    settings: Settings | None = None,
    env: envs.Env | None = None,
    egress: Egress | None = None,
    sinks: observers.Sinks | None = None,
    metrics: str | None = None,
    peers: Mapping[str, str] | None = None,
    codec: codec_opening.AnyCodec | None = None,
    secrets: secret_sources.Given | None = None,
) -> AsyncIterator[Connection]:
    """Open a store and one universe of it, and start the host if programs are hosted. `worldline.open` says more."""
    from worldline.host.feature_list import FEATURES  # noqa: PLC0415 - until opening is composed in host

    hosted, known = programs_of(host, "host"), programs_of(programs, "programs")
    wanted = bool(hosted) if create is None else create
    wanted_settings = settings_model.given(settings)
    with observers.observed(sinks, metrics=metrics, features=FEATURES) as observed:
        opening_store = store_opening.store(
            url, create=wanted, objects=objects, env=env, cache=wanted_settings.cache, codec=codec, features=FEATURES
        )
        async with opening_store as store:
            found = await find_universe(store, universe, create=wanted)
            opened = Connection(
                store,
                found,
                universe,
                hosted,
                wanted_settings,
                egress=egress,
                observed=observed,
                roles=HOSTING,
                watchdog=True,
                peers=peers,
                secrets=secrets,
            )
            for program in known:
                opened.knows(program)
            # Before the host starts: the first input must meet the bounds, and a host may run worlds that send at once.
            await opened.pressure.begin()
            opened.start()
            # A host finishes its steps after the first Ctrl+C, which may take long; without one there is nothing to
            # finish.
            with ctrl_c.second_ends() if hosted else nullcontext():
                try:
                    yield opened
                finally:
                    store.patience.end()
                    await opened.close()


def programs_of(given: Program | Sequence[Program], option: str) -> list[Program]:
    """Return the programs that were given, as a list."""
    if isinstance(given, Program):
        return [given]
    found: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
    wrong = next((each for each in found if not isinstance(each, Program)), None)
    if wrong is not None:
        raise errors.BadInput(f"{option}= takes a Program or a list of them, not {wrong!r}")
    return found


async def find_universe(store: store_opening.Store, name: str, *, create: bool) -> ids.UniverseId:
    """The universe of this name; made now if there is none and `create` says so."""

    async def attempt() -> transact.NothingToWrite[ids.UniverseId] | transact.Write[ids.UniverseId]:
        read = await store.engine.read(universes.get(name))
        found = universes.decode(read.value(0))
        # Before `create`: two processes that open a new universe at once both get the one that was made first.
        if found is not None:
            return transact.NothingToWrite(found)
        if not create:
            raise errors.NotFound(
                f"no universe {name!r} in this store; `worldline universe list` names those there are"
            )
        made = ids.UniverseId(envs.new_id(store.env))
        batch = kv.Batch()
        universes.create(batch, made, name=name, time_us=read.time_us)
        return transact.Write(batch, lambda _: made)

    return await transact.run(store.engine, store.env, attempt)
