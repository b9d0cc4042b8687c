"""Where a process is put together: a store with its features, the host beside it, and the connection that uses both.

`worldline.open` and the project's own tools open a universe here. A process that serves many universes is put together
in `api/hosting.py`, and one that is only a client of an open store needs no more than `connection.client`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any

from worldline.base import errors
from worldline.base.env import Env
from worldline.client import connection
from worldline.client.connection import Connection
from worldline.effects import secret_sources
from worldline.effects.egress import Egress
from worldline.host import ctrl_c
from worldline.host.feature_list import FEATURES
from worldline.host.process import ProcessHost
from worldline.kernel.authoring.program import Program
from worldline.model import ids
from worldline.model import settings as settings_model
from worldline.model.roles import EMBEDDED, HOSTING, Role
from worldline.model.settings import Settings
from worldline.observe import sinks as observers
from worldline.runtime import facts, peer_stores, store_opening
from worldline.runtime.store_wrapping import StoreCodec
from worldline.runtime.universes import served_universes


class LocalProcess:
    """One universe in this process: the connection, and the host that it uses, if worlds are hosted here."""

    def __init__(self, link: Connection, host: ProcessHost | None) -> None:
        self.link = link
        self.host = host

    def start(self) -> None:
        if self.host is not None:
            self.host.start()

    async def close(self) -> None:
        """Stop the host first: its workers may still read worlds through the connection."""
        try:
            if self.host is not None:
                await self.host.close()
        finally:
            await self.link.peers.close()  # a host that could not end has left them open
            await self.link.close()


def local_process(
    store: store_opening.Store,
    universe: ids.UniverseId,
    name: str,
    programs: Sequence[Program],
    settings: Settings,
    *,
    egress: Egress | None = None,
    observed: observers.Observed | None = None,
    roles: Sequence[Role] = EMBEDDED,
    watchdog: bool = False,
    peers: Mapping[str, str] | peer_stores.Peers | None = None,
    secrets: secret_sources.Given | None = None,
) -> LocalProcess:
    """Put a process together that hosts worlds of these programs; without programs, a client."""
    # First of all: only the store that tells its facts has reads that show in the metrics.
    store = store_opening.told(store, facts.NOTHING if observed is None else observed.telemetry)
    reached = peers if isinstance(peers, peer_stores.Peers) else peer_stores.Peers(store, peer_stores.check_urls(peers))
    host = None
    if programs:
        blobs = peer_stores.blobs_of(store, universe)
        host = ProcessHost(
            store,
            served_universes.Universes.only(universe, name),
            programs,
            blobs=lambda _: blobs,
            settings=settings,
            egress=egress,
            peers=reached,
            telemetry=facts.NOTHING if observed is None else observed.telemetry,
            roles=roles,
            watchdog=watchdog,
            secrets=secrets,
        )
    link = Connection(store, universe, name, settings, host=host, peers=reached, observed=observed)
    for program in programs:
        link.knows(program)
    return LocalProcess(link, host)


def host_of(link: Connection) -> ProcessHost:
    """The host of this process, of a connection that has one."""
    assert isinstance(link.host, ProcessHost), "no worlds are hosted here"
    return link.host


@asynccontextmanager
async def open(
    url: str,
    *,
    host: Program | Sequence[Program] = (),
    programs: Program | Sequence[Program] = (),
    universe: str = connection.DEFAULT_UNIVERSE,
    objects: str | None = None,
    create: bool | None = None,
    settings: Settings | None = None,
    env: Env | None = None,
    egress: Egress | None = None,
    sinks: observers.Sinks | None = None,
    metrics: str | None = None,
    peers: Mapping[str, str] | None = None,
    codec: StoreCodec | None = None,
    secrets: secret_sources.Given | None = None,
) -> AsyncIterator[Connection]:
    """Open a store and one universe of it, and start the host if programs are hosted. `worldline.open` says more."""
    hosted, known = programs_of(host, "host"), programs_of(programs, "programs")
    wanted = bool(hosted) if create is None else create
    wanted_settings = settings_model.given(settings)
    with observers.observed(sinks, metrics=metrics, features=FEATURES) as observed:
        opening_store = store_opening.store(
            url, create=wanted, objects=objects, env=env, cache=wanted_settings.cache, codec=codec, features=FEATURES
        )
        async with opening_store as store:
            found = await connection.find_universe(store, universe, create=wanted)
            process = local_process(
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
                process.link.knows(program)
            # Before the host starts: the first input must meet the bounds, and a host may run worlds that send at once.
            await process.link.pressure.begin()
            process.start()
            # A host finishes its steps after the first Ctrl+C, which may take long; without one there is nothing to
            # finish.
            with ctrl_c.second_ends() if hosted else nullcontext():
                try:
                    yield process.link
                finally:
                    store.patience.end()
                    await process.close()


def programs_of(programs: Program | Sequence[Program], option: str) -> list[Program]:
    """Return the programs that were given, as a list."""
    if isinstance(programs, Program):
        return [programs]
    found: list[Any] = list(programs) if isinstance(programs, list | tuple) else [programs]
    wrong = next((each for each in found if not isinstance(each, Program)), None)
    if wrong is not None:
        raise errors.BadInput(f"{option}= takes a Program or a list of them, not {wrong!r}")
    return found
