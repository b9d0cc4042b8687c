"""The universes of a store: listing, making and deleting them, without hosting or opening any."""

from __future__ import annotations

import msgspec

from worldline.base import env as envs
from worldline.features.deletion import universe_calls
from worldline.features.encryption import codec_opening
from worldline.features.quotas import calls as quota_calls
from worldline.features.quotas.quota_use import QuotaUse
from worldline.host.feature_list import FEATURES
from worldline.layers import universes as layer
from worldline.model import ids
from worldline.runtime import store_opening
from worldline.runtime.universes import served_universes
from worldline.store import kv, transact


class UniverseInfo(msgspec.Struct, frozen=True):
    """A universe of a store, what it has and what it may have."""

    name: str
    id: str
    created_us: int
    use: QuotaUse


async def universes(
    url: str, /, *, objects: str | None = None, codec: codec_opening.AnyCodec | None = None
) -> list[UniverseInfo]:
    """List the universes of a store, by name. `worldline.open` says what the URL can be."""
    async with store_opening.store(url, create=False, objects=objects, codec=codec, features=FEATURES) as store:
        return await listed(store)


async def create_universe(
    url: str, name: str, /, *, objects: str | None = None, codec: codec_opening.AnyCodec | None = None
) -> bool:
    """Make a universe in a store. False if there is one of this name."""
    async with store_opening.store(url, create=False, objects=objects, codec=codec, features=FEATURES) as store:
        return await create(store, name)


async def delete_universe(url: str, name: str, /, *, with_worlds: bool = False, objects: str | None = None) -> None:
    """Delete a universe of a store with everything in it: nothing of it is left on return, and its name is free.

    `InUse` if it has worlds, unless they go `with_worlds`, or if workers run some of them. `worldline.open` says what
    the URL can be.
    """
    async with store_opening.store(url, create=False, objects=objects, features=FEATURES) as store:
        await universe_calls.delete(store, name, with_worlds=with_worlds)


async def listed(store: store_opening.Store, *, count: bool = False) -> list[UniverseInfo]:
    """`count`: also count the bytes of each now, which reads all of the store."""
    found = await served_universes.read_all(store.engine)
    # One read for all: a store may have thousands.
    read = await store.engine.read(*(layer.get_meta(each.id) for each in found))
    return [
        UniverseInfo(
            each.name,
            each.id.hex(),
            layer.created_us(read.value(index)),
            await quota_calls.use(store, each.id, count=count),
        )
        for index, each in enumerate(found)
    ]


async def create(store: store_opening.Store, name: str) -> bool:
    # Before the store is asked: a key of a name that is not one must not be read.
    ids.check_name(name, "a universe's name")

    async def attempt() -> transact.NothingToWrite[bool] | transact.Write[bool]:
        read = await store.engine.read(layer.get(name))
        if read.value(0) is not None:
            return transact.NothingToWrite(False)
        batch = kv.Batch()
        layer.create(batch, ids.UniverseId(envs.new_id(store.env)), name=name, time_us=read.time_us)
        return transact.Write(batch, lambda _: True)

    return await transact.run(store.engine, store.env, attempt)
