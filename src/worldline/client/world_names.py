"""Names of worlds. Any number of names may point to a world; one of them is its own, under which it was made, or which
it was given since. A name is moved from one world to another in one commit.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from worldline.client.connection import Connection
from worldline.keys import worlds as keys
from worldline.layers import worlds
from worldline.model import ids
from worldline.store import kv, paging

PAGE = 500


class Ref(msgspec.Struct, frozen=True):
    """A name and the world that it points to. `own`: the one that the world was created under, or renamed to."""

    name: str
    world: str
    id: str
    own: bool


async def named(connection: Connection, name: str) -> ids.Address | None:
    """Return where a name points."""
    return worlds.named(
        connection.id, (await connection.store.engine.read(worlds.get_name(connection.id, name))).value(0)
    )


async def refs(connection: Connection) -> AsyncIterator[Ref]:
    """Every name, in order, and where it points. One that points to a deleted world is left out."""
    begin, end = keys.names(connection.id)
    page: list[tuple[str, ids.Address]] = []
    async for key, raw in paging.RangeItems(connection.store.engine, kv.Range(begin, end)):
        at = worlds.named(connection.id, raw)
        assert at is not None
        page.append((keys.name_of(connection.id, key), at))
        if len(page) >= PAGE:  # one read for the worlds of many names, instead of one for each
            for ref in await _known(connection, page):
                yield ref
            page = []
    for ref in await _known(connection, page):
        yield ref


async def _known(connection: Connection, page: Sequence[tuple[str, ids.Address]]) -> list[Ref]:
    pointed = list(dict.fromkeys(at for _, at in page))  # several names of one world: its record is read once
    read = await connection.store.engine.read(*(worlds.get(at) for at in pointed))
    found = {at: worlds.find(at, read.value(index)) for index, at in enumerate(pointed)}
    return [
        Ref(name, world.meta.name, at.world.hex(), own=world.meta.name == name)
        for name, at in page
        if (world := found[at]) is not None
    ]
