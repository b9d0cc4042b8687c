"""Deleting a world as a user asks for it, and which deletions are not finished."""

from __future__ import annotations

import functools
from collections.abc import Callable

import msgspec

from worldline.base import errors
from worldline.client import no_host
from worldline.client.connection import Connection
from worldline.features.deletion import batches
from worldline.features.deletion import job as deletions
from worldline.features.erasure import ledger_file, scrub_job
from worldline.layers import snapshots
from worldline.model import ids
from worldline.runtime import world_holders

FORKS_WAIT_MS = 1_000
PAGE = 500

Progress = Callable[[int], None]


class Deletion(msgspec.Struct, frozen=True):
    """A world that was deleted and is not removed completely. `removed`: keys so far."""

    id: str
    since_us: int
    removed: int


async def delete(
    connection: Connection,
    at: ids.Address,
    *,
    alias: str = "",
    wait: bool = False,
    after_forks: bool = False,
    progress: Progress = lambda _: None,
) -> bool:
    """Delete a world. False if it was deleted before. `alias`: a name to free besides its own. `wait`: until nothing of
    it is left; this process does what is to be done. `after_forks`: first until no fork needs its history.
    """
    engine, env = connection.store.engine, connection.store.env
    if after_forks:
        await _wait_for_forks(connection, at)
    # A world that forks pin is not deleted below, so this process must keep it.
    if connection.host is not None and not await deletions.pinned_by(engine, at, count_max=1):
        await connection.host.worlds.forget(at)
    begun = await deletions.begin(engine, env, at, alias=alias)
    # Before the long part: the deletion is decided, and the file must say so even if this process dies.
    await ledger_file.keep(connection.store)
    if wait:
        is_dead = functools.partial(world_holders.is_gone, connection.store)
        await deletions.WorldRemoval(engine, env, at.universe, only=at, is_dead=is_dead).run(progress)
        await scrub_job.scrub(engine, env)  # what is in the way now is owed
    return begun


async def _wait_for_forks(connection: Connection, at: ids.Address) -> None:
    """Until each fork has a state of its own, which the worker that runs it saves at once. `NotHosted` if no process
    runs one of them.
    """
    engine = connection.store.engine
    watches: dict[ids.Address, no_host.HostWatch] = {}
    while True:
        pins = snapshots.pins_range(at, count_max=PAGE)
        read = await engine.read(pins)
        forks = [ids.Address(at.universe, fork) for fork, _ in snapshots.decode_pins(at, read.page(0))]
        if not forks:
            return
        connection.wake()
        # A hint can be lost: after this time it looks by itself.
        await engine.wait(pins.begin, read.seen, FORKS_WAIT_MS)
        # A watch is kept from look to look: it counts how long its fork has been without a worker.
        watches = {fork: watches.get(fork) or no_host.HostWatch(connection, fork) for fork in forks}
        for watch in watches.values():
            try:
                await watch.look()
            except errors.NotFound:
                continue  # it was deleted meanwhile


async def unfinished(connection: Connection, *, limit: int = PAGE) -> list[Deletion]:
    """Deletions that are not finished, the oldest worlds first."""
    read = await connection.store.engine.read(batches.unfinished(connection.id, count_max=limit))
    found = batches.decode_unfinished(connection.id, read.page(0))
    return [Deletion(each.at.world.hex(), each.record.since_us, each.record.removed) for each in found]
