"""Garbage collection in tests: a whole one at once, and whether every reference can be read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from worldline.api.universe_api import Universe
from worldline.base import env as envs
from worldline.base import errors
from worldline.features.collection import references
from worldline.features.collection.address_set import Marked
from worldline.features.collection.collector import CollectionPass, CollectionReport
from worldline.features.collection.mark_phase import Marker, Unreadable
from worldline.keys import cas as cas_keys
from worldline.layers import blobs as blob_layer
from worldline.model import ids
from worldline.store import kv


class Noted(Marked):
    """Remembers whole addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: dict[bytes, None] = {}

    def add(self, address: bytes) -> bool:
        self.addresses[address] = None
        return super().add(address)


async def reachable(engine: kv.Engine, blobs: blob_layer.Blobs, universe: ids.UniverseId) -> dict[bytes, None]:
    """Every address that is referred to. `Unreadable` if one that may refer to others cannot be read."""
    noted = Noted()
    marker = Marker(engine, blobs, universe, noted)
    while not await marker.turn():
        pass
    return noted.addresses


async def missing(engine: kv.Engine, blobs: blob_layer.Blobs, universe: ids.UniverseId) -> list[str]:
    """What is referred to and cannot be read."""
    try:
        found = await reachable(engine, blobs, universe)
    except Unreadable as error:
        return [str(error)]
    lost: list[str] = []
    for address in found:
        try:
            await blobs.get(address)
        except (errors.NotFound, errors.Corrupt) as error:
            lost.append(str(error))
    return lost


async def stored(engine: kv.Engine, universe: ids.UniverseId) -> list[bytes]:
    """The addresses of all blobs."""
    found = (await engine.read(kv.Range(*cas_keys.blobs(universe), count_max=10**6, bytes_max=1 << 30))).page(0)
    return [cas_keys.blob_address(universe, key) for key, _ in found.items]


async def finish(run: CollectionPass) -> CollectionReport:
    while not await run.turn():
        pass
    return run.report


async def collect(
    engine: kv.Engine,
    env: envs.Env,
    blobs: blob_layer.Blobs,
    universe: ids.UniverseId,
    *,
    places: Iterable[references.ReferenceRange] = references.PLACES,
    **options: Any,
) -> CollectionReport:
    """Two collections without a grace: nothing goes by one mark. Returns the report of the second."""
    wanted = {"grace_ms": 0, **options}
    await finish(CollectionPass(engine, env, blobs, universe, places=places, **wanted))
    return await finish(CollectionPass(engine, env, blobs, universe, places=places, **wanted))


class Around:
    """A universe to be collected, as an open one has it."""

    def __init__(self, universe: Universe) -> None:
        opened = universe._connection
        self.parts = opened.store.engine, opened.store.env, opened.blobs, opened.id

    async def collect(self, **options: Any) -> CollectionReport:
        return await collect(*self.parts, **options)

    def run(self, **options: Any) -> CollectionPass:
        return CollectionPass(*self.parts, **{"grace_ms": 0, **options})

    async def missing(self) -> list[str]:
        engine, _, blobs, universe = self.parts
        return await missing(engine, blobs, universe)

    async def garbage(self) -> list[bytes]:
        """Blobs that nothing refers to."""
        engine, _, blobs, universe = self.parts
        known = await reachable(engine, blobs, universe)
        return [each for each in await stored(engine, universe) if each not in known]
