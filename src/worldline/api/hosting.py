"""Hosting many universes of a store in one process: one set of roles, one heartbeat, one pool of threads for all.

Universes are named, or found: `*` is all that there are, `tenant-*` those whose names begin so. New ones are served as
soon as they are found, and those that are deleted are let go of, while the process runs.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from worldline.api.universe_api import Universe
from worldline.base import env as envs
from worldline.base import errors
from worldline.client import connection
from worldline.client.connection import Connection
from worldline.effects import secret_sources
from worldline.effects.egress import Egress
from worldline.features.abroad import peer_stores
from worldline.features.encryption import codec_opening
from worldline.host import ctrl_c, process
from worldline.host.feature_list import FEATURES
from worldline.kernel.authoring.program import Program
from worldline.model import ids
from worldline.model import settings as settings_model
from worldline.model.settings import Settings
from worldline.observe import sinks as observers
from worldline.runtime import store_opening
from worldline.runtime.universes import served_universes

BLOBS_MAX = 4_096  # universes whose blobs are kept open


class Hosting:
    """What a process that hosts many universes has of them."""

    def __init__(
        self,
        store: store_opening.Store,
        host: process.ProcessHost,
        settings: Settings,
        *,
        observed: observers.Observed,
        programs: Sequence[Program],
    ) -> None:
        self._store = store
        self._settings = settings
        self._observed = observed
        self._programs = programs
        self._opened: dict[ids.UniverseId, Connection] = {}
        self.host = host
        began_wall_us = store.env.wall_us()
        observed.levels_from(lambda: connection.surroundings(store, began_wall_us) | self._levels())
        host.universes.on_gone.append(self._gone)
        self._leaving: list[Connection] = []

    @property
    def metrics_port(self) -> int | None:
        """The port where Prometheus finds metrics, if they are offered."""
        return self._observed.port

    @property
    def universes(self) -> list[str]:
        """The names of the universes that are served now."""
        return sorted(each.name for each in self.host.universes.all)

    async def universe(self, name: str, /, *, create: bool = False) -> Universe:
        """Return one of the universes that are served. `NotFound` if there is none of this name, unless it is to be
        made.
        """
        # Else it would be made, and its worlds would wait for a host that does not serve it.
        if not self.host.universes.wants(name):
            raise errors.BadInput(f"universe {name!r} is not served by this host; name it with universes=")
        found = await connection.find_universe(self._store, name, create=create)
        # Kept: what a connection remembers of its worlds is worth a read with each input.
        opened = self._opened.get(found)
        if opened is None:
            await self.host.look_for_universes()
            opened = Connection(self._store, found, name, [], self._settings, shared=self.host)
            for program in self._programs:
                opened.knows(program)
            await opened.pressure.begin()  # before the first input: the quota holds from there on
            self._opened[found] = opened
        return Universe(opened)

    def _gone(self, universe: ids.UniverseId) -> None:
        gone = self._opened.pop(universe, None)
        if gone is not None:
            self._leaving.append(gone)  # closed at the end: this is called where nothing can be awaited

    def _levels(self) -> dict[str, float]:
        # Each universe has a bound of its own; the process has one gauge.
        waiting = sum(each.pressure.waiting for each in self._opened.values())
        return self.host.levels() | {"worldline_inputs_waiting": waiting}

    async def close(self) -> None:
        """Let go of all universes, and close the store."""
        self._store.patience.end()  # attempts at the object store must not keep the end waiting
        try:
            await self.host.close()
        finally:
            # After the host: its workers may still read worlds through them.
            for each in [*self._opened.values(), *self._leaving]:
                await each.close()


@asynccontextmanager
async def prepared(
    url: str,
    programs: Sequence[Program],
    *,
    universes: Sequence[str],
    roles: Sequence[process.Role],
    settings: Settings,
    objects: str | None = None,
    create: bool = True,
    env: envs.Env | None = None,
    egress: Egress | None = None,
    sinks: observers.Sinks | None = None,
    metrics: str | None = None,
    peers: Mapping[str, str] | None = None,
    codec: codec_opening.AnyCodec | None = None,
    secrets: secret_sources.Given | None = None,
) -> AsyncIterator[Hosting]:
    """A host of these roles, which the caller starts and closes."""
    with observers.observed(sinks, metrics=metrics) as observed:
        async with store_opening.store(
            url, create=create, objects=objects, env=env, cache=settings.cache, codec=codec, features=FEATURES
        ) as opened:
            store = store_opening.told(opened, observed.telemetry)
            for name in universes:
                if not served_universes.is_pattern(name):  # a pattern names none that could be made
                    await connection.find_universe(store, name, create=create)
            host = process.ProcessHost(
                store,
                served_universes.Universes(patterns=universes),
                programs,
                # Bounded: a process may come to serve any number of universes.
                blobs=functools.lru_cache(BLOBS_MAX)(functools.partial(peer_stores.blobs_of, store)),
                settings=settings,
                egress=egress,
                peers=peer_stores.Peers(store, peer_stores.check_urls(peers)),
                roles=roles,
                telemetry=observed.telemetry,
                watchdog=True,
                secrets=secrets,
            )
            await host.look_for_universes()
            yield Hosting(store, host, settings, observed=observed, programs=programs)


@asynccontextmanager
async def serve(
    url: str,
    programs: Program | Sequence[Program],
    /,
    *,
    universes: str | Sequence[str] = served_universes.ALL,
    objects: str | None = None,
    create: bool = True,
    settings: Settings | None = None,
    env: envs.Env | None = None,
    egress: Egress | None = None,
    sinks: observers.Sinks | None = None,
    metrics: str | None = None,
    peers: Mapping[str, str] | None = None,
    codec: codec_opening.AnyCodec | None = None,
    secrets: secret_sources.Given | None = None,
) -> AsyncIterator[Hosting]:
    """Run worlds of these programs in many universes of a store: in all, or in those that are named.

    A name is made if there is no such universe, unless `create` is False; a pattern with `*`, `?` or `[...]` stands for
    universes that there are, now and later. The other arguments are those of `worldline.open`.
    """
    # Checked before the store is opened, or a slip would make an empty store.
    hosted = connection.programs_of(programs, "programs")
    if not hosted:
        raise errors.BadInput("name the programs to host")
    chosen = served_universes.check_patterns(universes)
    opened = prepared(
        url,
        hosted,
        universes=chosen,
        roles=connection.HOSTING,
        settings=settings_model.given(settings),
        objects=objects,
        create=create,
        env=env,
        egress=egress,
        sinks=sinks,
        metrics=metrics,
        peers=peers,
        codec=codec,
        secrets=secrets,
    )
    async with opened as hosting:
        hosting.host.start()
        with ctrl_c.second_ends():
            try:
                yield hosting
            finally:
                await hosting.close()
