"""Deleting a universe as a user asks for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from worldline.features.deletion import universe_job as deletions
from worldline.features.erasure import ledger_file, scrub_job
from worldline.layers import leases
from worldline.model import ids
from worldline.runtime import store_opening, world_holders


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
