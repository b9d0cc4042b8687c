"""Dead rows leave the pages of a server's table by a scrub, unless a transaction still sees them."""

from __future__ import annotations

import struct

from tests import aio
from tests.conformance import batches
from tests.servers import postgres as servers
from tests.store.postgres_kit import Place, Raw
from worldline.store import kv

HEADER_BYTES = 24  # of a page; its pointers to rows follow
NORMAL = 1


async def rows(raw: Raw, place: Place) -> int:
    """Rows in the first page of the table's file, dead ones too."""
    await raw.execute("CHECKPOINT")
    name = await raw.fetchval("SELECT pg_relation_filepath($1::text::regclass)", f"{place.schema}.kv")
    page = (place.server.data / name).read_bytes()[:8192]
    (lower,) = struct.unpack_from("<H", page, 12)
    return sum(pointer >> 15 & 3 == NORMAL for (pointer,) in struct.iter_unpack("<I", page[HEADER_BYTES:lower]))


async def test_dead_rows_are_taken_out_of_their_pages() -> None:
    place = Place(servers.shared())
    try:
        await _scrubbed(place)
    finally:
        await place.aclose()


async def _scrubbed(place: Place) -> None:
    engine, raw = await place.open(), await place.raw()
    await raw.execute("ALTER TABLE kv SET (autovacuum_enabled = off)")
    for number in range(4):
        await batches.ok(engine, batches.create(b"%d" % number, b"secret"))
    before = await rows(raw, place)
    frozen = await kv.freeze(engine)
    for number in range(3):
        batch = kv.Batch()
        batch.expect(b"%d" % number, b"secret")
        batch.delete(b"%d" % number)
        await batches.ok(engine, batch)

    seen = await kv.scrub(engine)
    assert not seen.complete
    assert seen.held_by
    assert await rows(raw, place) == before == 4
    await frozen.close()

    async def is_scrubbed() -> bool:
        return (await kv.scrub(engine)).complete  # other tests on this server may have old transactions, too

    await aio.until(is_scrubbed)
    assert await rows(raw, place) == 1
    assert (await engine.read(kv.Get(b"3"))).value(0) == b"secret"
