"""Letting copies go on: worlds that were restored or imported, and are archived until a person says so."""

from __future__ import annotations

from worldline.client import listing
from worldline.client.connection import Connection
from worldline.features.copies import dormant_worlds, records
from worldline.layers import ready, worlds
from worldline.model import ids
from worldline.model.world_records import Status
from worldline.store import kv, transact

PAGE = 500


async def held_copies(connection: Connection) -> list[tuple[ids.Address, str, records.DormantCopy]]:
    """Every copy that is not used yet, with its name."""
    archived = [
        (at, meta.name) async for at, meta in listing.worlds_of(connection, listing.Filter(status=Status.ARCHIVED))
    ]
    found: list[tuple[ids.Address, str, records.DormantCopy]] = []
    for start in range(0, len(archived), PAGE):
        page = archived[start : start + PAGE]
        read = await connection.store.engine.read(*(dormant_worlds.get(at) for at, _ in page))
        for index, (at, name) in enumerate(page):
            record = dormant_worlds.decode(read.value(index))
            if record is not None:
                found.append((at, name, record))
    return found


async def release_all(connection: Connection) -> list[worlds.WorldRecord]:
    """Let every copy become what it was. Those that are not copies stay as they are. May be repeated."""
    released = [await _release(connection, at) for at, _, _ in await held_copies(connection)]
    connection.wake()
    return [each for each in released if each is not None]


async def _release(connection: Connection, at: ids.Address) -> worlds.WorldRecord | None:
    engine = connection.store.engine

    async def attempt() -> (
        transact.NothingToWrite[worlds.WorldRecord | None] | transact.Write[worlds.WorldRecord | None]
    ):
        read = await engine.read(worlds.get(at), dormant_worlds.get(at))
        world = worlds.find(at, read.value(0))
        batch = kv.Batch()
        released = None if world is None else dormant_worlds.release(batch, world, read.value(1))
        # Released by another process, or deleted, since the list was made.
        if released is None:
            return transact.NothingToWrite(None)
        # A hint for workers: unread inputs may wait for this world since it was archived.
        if released.meta.status is Status.ACTIVE:
            ready.leave(batch, at, priority=ready.NORMAL)
        return transact.Write(batch, lambda _: released)

    return await transact.run(engine, connection.store.env, attempt)
