"""While an old transaction is open, nothing that was overwritten can be removed: lookups must not walk over it all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from tests.conformance import batches
from tests.servers import postgres
from tests.store.postgres_kit import Place, Raw
from worldline.store import kv
from worldline.store.postgres import sql

WRITES = 400


@pytest.fixture
def place() -> Place:
    return Place(postgres.shared())


async def _walked(raw: Raw, schema: str, *keys: bytes) -> int:
    """How many pages the engine's own read statement looks at for these keys."""
    await raw.execute(sql.SESSION)
    asked = "array[" + ", ".join(f"'\\x{key.hex()}'::bytea" for key in keys) + "]"
    none = "array[]::bytea[], array[]::bytea[], array[]::integer[], array[]::integer[], array[]::integer[]"
    await raw.execute(f"PREPARE reading AS {sql.read(schema, backwards=False)}")
    [row] = await raw.fetch(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE reading({asked}, {none})")
    plan = json.loads(row[0])
    await raw.execute("DEALLOCATE reading")
    return int(plan[0]["Plan"]["Shared Hit Blocks"]) + int(plan[0]["Plan"]["Shared Read Blocks"])


async def test_the_newest_version_of_a_row_is_found_first(place: Place) -> None:
    engine, raw, old = await place.open(), await place.raw(), await place.raw()
    await batches.ok(engine, batches.create(b"head", b"0" * 200))
    before = await _walked(raw, place.schema, b"head")
    await old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await old.fetch("SELECT count(*) FROM kv")
    for number in range(WRITES):
        await batches.ok(engine, batches.replace(b"head", b"%d" % (number % 2) * 200, b"%d" % ((number + 1) % 2) * 200))
    dead = await raw.fetchval("SELECT pg_relation_size($1::text::regclass) / 8192", f"{place.schema}.kv")
    assert dead > 4, "the old versions were removed, so this proves nothing"
    assert await _walked(raw, place.schema, b"head") <= before + 2
    await old.execute("ROLLBACK")


async def test_a_read_only_transaction_does_not_hold_stable_back_and_a_writing_one_does(place: Place) -> None:
    engine, old = await place.open(), await place.raw()

    async def stable() -> kv.Stamp:
        return (await engine.read(batches.under(b"queue/"))).page(0).stable

    await old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await old.fetch("SELECT count(*) FROM kv")
    before = await stable()
    for turn in range(3):
        await batches.ok(engine, batches.once(turn))
    await _rises(stable, before)
    await old.execute("COMMIT")
    await old.execute("BEGIN")
    await old.fetchval("SELECT pg_current_xact_id()::text")
    held = await stable()
    for turn in range(3):
        await batches.ok(engine, batches.once(f"held {turn}"))
    assert await stable() == held
    await old.execute("COMMIT")
    await _rises(stable, held)


async def _rises(stable: Callable[[], Awaitable[kv.Stamp]], above: kv.Stamp) -> None:
    """Other tests write into this server, too, and each of their transactions holds it back for a moment."""
    for _ in range(200):
        if await stable() > above:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("nothing is held back, and it does not rise")
