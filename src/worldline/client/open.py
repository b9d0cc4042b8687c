"""Opening a universe. With `host=`, the process also runs worlds of those programs; without, it is a client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from worldline.adapters.egress import Egress
from worldline.base import env as envs
from worldline.base import errors
from worldline.client.universe import Universe
from worldline.host import compose, process
from worldline.kernel.authoring.program import Program
from worldline.layers import universes
from worldline.model import ids
from worldline.model.settings import Settings
from worldline.observe import sinks as observers
from worldline.store import kv, transact

DEFAULT_UNIVERSE = "default"
HOSTING = (*process.EMBEDDED, process.Role.JANITOR)  # the roles of a process that hosts, unless it is part of a cluster


@asynccontextmanager
async def open(
    url: str,
    /,
    *,
    host: Program | Sequence[Program] = (),
    universe: str = DEFAULT_UNIVERSE,
    objects: str | None = None,
    create: bool | None = None,
    settings: Settings | None = None,
    env: envs.Env | None = None,
    egress: Egress | None = None,
    sinks: observers.Sinks | None = None,
    metrics: str | None = None,
) -> AsyncIterator[Universe]:
    """Open a universe: a folder, or `postgresql://...`. `host=` runs worlds of these programs here.

    A store is created if this process hosts, or if `create` says so. `egress` says which hosts `wl.http.request` may
    reach from here: none, unless they are named. `sinks` are functions that are told what this process does; `metrics`
    is HOST:PORT where Prometheus finds the same as numbers.
    """
    programs = [host] if isinstance(host, Program) else list(host)
    wanted = bool(programs) if create is None else create
    with observers.observed(sinks, metrics=metrics) as observed:
        async with compose.store(url, create=wanted, objects_url=objects, env=env) as store:
            found = await _find_universe(store, universe, create=wanted)
            opened = Universe(
                store, found, universe, programs, settings or Settings(),
                egress=egress, observed=observed, roles=HOSTING,
            )  # fmt: skip
            opened.start()
            try:
                yield opened
            finally:
                await opened.close()


async def _find_universe(store: compose.Store, name: str, *, create: bool) -> ids.UniverseId:
    async def attempt() -> transact.Done[ids.UniverseId] | transact.Write[ids.UniverseId]:
        read = await store.engine.read(universes.get(name))
        found = universes.decode(read.value(0))
        if found is not None:
            return transact.Done(found)
        if not create:
            raise errors.NotFound(f"no universe {name!r} in this store")
        made = ids.UniverseId(envs.new_id(store.env))
        batch = kv.Batch()
        universes.create(batch, made, name=name, time_us=read.time_us)
        return transact.Write(batch, lambda _: made)

    return await transact.run(store.engine, store.env, attempt)
