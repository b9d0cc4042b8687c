"""One universe of a store, as one process has it: the engine, the objects, the host if worlds run here, and what the
process remembers of worlds it talks to. It starts no host: `api/wiring.py` puts one beside it.

This is the SDK's inner side. Users' programs get a `Universe` from `worldline.open`, which keeps its connection
private. The project's own tools (command line, inspection, simulator, benchmarks) open a connection and use it
directly; the typed API can be made on top of it: `Universe(connection)`, `World(connection, name)`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from worldline.base import env as envs
from worldline.base import errors
from worldline.base.bounded_map import BoundedMap
from worldline.client import ask_order, backpressure, known_worlds, local_host
from worldline.kernel.authoring.program import Program
from worldline.layers import universes
from worldline.model import ids
from worldline.model.settings import Settings
from worldline.observe import sinks as observers
from worldline.runtime import daemon_threads, facts, peer_stores, store_opening
from worldline.runtime import world_reader as readers
from worldline.store import kv, transact
from worldline.worker import no_asyncio
from worldline.worker.held_world import HeldWorld

DEFAULT_UNIVERSE = "default"
WARM_MAX = 64  # worlds that are read and not run here, whose states are kept for the next look


class Connection:
    def __init__(
        self,
        store: store_opening.Store,
        universe: ids.UniverseId,
        name: str,
        settings: Settings,
        *,
        host: local_host.LocalHost | None = None,
        peers: peer_stores.Peers | None = None,
        observed: observers.Observed | None = None,
    ) -> None:
        """`host`: one that serves this universe. It is neither started nor closed from here, and has peers of its own.
        `peers`: closed with the connection, where there is no host.
        """
        self.name = name
        self.id = universe
        self.host = host
        self.store = store
        if host is None:
            self.telemetry = facts.NOTHING if observed is None else observed.telemetry
            self.blobs, self.peers = peer_stores.blobs_of(store, universe), peers or peer_stores.Peers(store)
        else:
            self.telemetry, self.blobs, self.peers = host.telemetry, host.blobs(universe), host.peers
        self.pressure = backpressure.Pressure(store, universe, settings.pressure, telemetry=self.telemetry)
        self.recent = known_worlds.Recent(store.env)
        self.arrivals = ask_order.Arrivals()
        self._observed = observed
        self._began_wall_us = store.env.wall_us()
        self.levels_from(dict)
        self.settings = settings
        self.programs: dict[str, Program] = {}
        self.executor = daemon_threads.DaemonPool(1, "worldline-reader", no_asyncio.refuse_asyncio)
        # The last that were used, the latest last. A whole state each: a process may look at many worlds.
        self._warm: BoundedMap[ids.Address, readers.WorldReader] = BoundedMap(WARM_MAX)
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

    def wake(self) -> None:
        """Tell this process's own workers, if it has some, that a world may be ready."""
        if self.host is not None:
            self.host.worlds.wake()

    async def close(self) -> None:
        """End the readers, and the peers where no host has them. The store stays open."""
        if self.host is None:
            await self.peers.close()
        elif self.host.runs_worlds:
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
        reader = self._warm.get(at)
        if reader is None:
            reader = readers.WorldReader(self.store.engine, self.blobs, known or Program(program), at, self.executor)
        elif known is not None:
            # The reader may be older than `knows`: from now on it reads with the program's code.
            reader.use(known)
        self._warm[at] = reader  # also one that was known: the order is that of the last use
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
async def client(
    store: store_opening.Store,
    name: str,
    settings: Settings,
    *,
    create: bool = False,
    programs: Sequence[Program] = (),
    peers: Mapping[str, str] | None = None,
) -> AsyncIterator[Connection]:
    """A universe of an open store, for a process that hosts none of its worlds."""
    with observers.observed(features=store.features) as observed:
        found = await find_universe(store, name, create=create)
        reached = peer_stores.Peers(store, peer_stores.check_urls(peers))
        opened = Connection(store, found, name, settings, peers=reached, observed=observed)
        for program in programs:
            opened.knows(program)
        await opened.pressure.begin()  # before the first input: bounds hold from there on
        try:
            yield opened
        finally:
            store.patience.end()
            await opened.close()


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
