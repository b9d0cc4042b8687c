"""Roles on their own: a host of any mix on the store of a `Kit`, as a process of its own would be."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit
from worldline.host.process import ProcessHost
from worldline.model.roles import Role
from worldline.model.settings import Settings
from worldline.runtime.universes.served_universes import Universes


@asynccontextmanager
async def host(
    kit: Kit, *programs: wl.Program, roles: Sequence[Role], settings: Settings = kits.SETTINGS
) -> AsyncIterator[ProcessHost]:
    """These roles, with an engine of their own, until the end of the block."""
    process = await kit.process()
    universe = process.universe
    made = ProcessHost(
        universe._connection.store,
        Universes.only(universe._connection.id),
        programs,
        blobs=lambda _: universe._connection.blobs,
        settings=settings,
        roles=roles,
    )
    made.start()

    async def ready() -> bool:
        return made.ready

    try:
        await aio.until(ready)
        yield made
    finally:
        await made.close()
        await process.close()
