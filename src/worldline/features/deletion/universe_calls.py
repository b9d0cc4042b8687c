"""Deleting a universe as a user asks for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from worldline.features.deletion import universe_job as deletions
from worldline.features.erasure import ledger_file, scrub_job
from worldline.layers import leases
from worldline.model import ids
from worldline.runtime import store_opening, world_holders


async def delete_universe(url: str, name: str, /, *, with_worlds: bool = False, objects: str | None = None) -> None:
    """Delete a universe of a store with everything in it: nothing of it is left on return, and its name is free.

    `InUse` if it has worlds, unless they go `with_worlds`, or if workers run some of them. `worldline.open` says what
    the URL can be.
    """
    from worldline.host.feature_list import FEATURES  # noqa: PLC0415 - until opening is composed in host

    async with store_opening.store(url, create=False, objects=objects, features=FEATURES) as store:
        await delete(store, name, with_worlds=with_worlds)


async def delete(
    store: store_opening.Store, name: str, *, with_worlds: bool, progress: Callable[[int], None] = lambda _: None
) -> None:
    ids.check_name(name, "a universe's name")

    async def hosted(states: Sequence[leases.LeaseState]) -> list[bool]:
        return [each is not None and each.alive for each in await world_holders.of_states(store, states)]

    universe = await deletions.begin(store.engine, store.env, name, with_worlds=with_worlds, hosted=hosted)
    await deletions.UniverseRemoval(store.engine, store.env, store_opening.bodies_of(store), only=universe).run(
        progress
    )
    await ledger_file.keep(store)
    await scrub_job.scrub(store.engine, store.env)  # what is in the way now is owed
