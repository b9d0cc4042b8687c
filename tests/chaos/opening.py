"""A universe as the tests have it: opened through `Recording`, so that what it commits is in the history."""

from __future__ import annotations

from collections.abc import Sequence

from tests.chaos import history
from worldline.api.universe_api import Universe
from worldline.base import env_os
from worldline.client import connection
from worldline.host.feature_list import FEATURES
from worldline.kernel.authoring.program import Program
from worldline.layers import store_format as formats
from worldline.model import ids
from worldline.model.settings import Settings
from worldline.runtime import store_opening

ENV = env_os.OsEnv()


async def recorded(
    url: str, objects: str, *, host: str = "client", knows: Sequence[Program] = (), hosts: Sequence[Program] = ()
) -> Universe:
    """Make the store and open it. `knows`: programs of worlds that are only talked to."""
    engine = await store_opening.open_engine(url, ENV, create=True)
    recording = history.Recording(engine, ENV.wall_us, host=host, life=1)
    await formats.ensure(recording, ENV, create=True)
    bodies = await store_opening.open_objects(objects, ENV, create=True)
    store = store_opening.Store(url, recording, bodies, ENV, FEATURES)
    found = await connection.find_universe(store, connection.DEFAULT_UNIVERSE, create=True)
    return _universe(store, found, knows, hosts)


async def plain(url: str, objects: str, universe: Universe, *, knows: Sequence[Program]) -> Universe:
    """The same universe, seen without anything in between."""
    engine = await store_opening.open_engine(url, ENV, create=False)
    bodies = await store_opening.open_objects(objects, ENV, create=False)
    return _universe(store_opening.Store(url, engine, bodies, ENV, FEATURES), universe._connection.id, knows, ())


def _universe(
    store: store_opening.Store, found: ids.UniverseId, knows: Sequence[Program], hosts: Sequence[Program]
) -> Universe:
    opened = connection.Connection(store, found, connection.DEFAULT_UNIVERSE, hosts, Settings())
    for program in knows:
        opened.knows(program)
    opened.start()
    return Universe(opened)


async def close(universe: Universe) -> None:
    await universe._connection.close()
    await universe._connection.store.close()
