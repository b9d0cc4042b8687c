"""A process that writes and goes at once is heard by those that wait."""

from __future__ import annotations

import asyncio

from tests.servers import postgres as servers
from tests.store import postgres_kit
from worldline.store import kv


async def test_what_was_written_right_before_closing_is_told() -> None:
    place = postgres_kit.Place(servers.shared())
    try:
        waiting = await place.open()
        for number in range(10):
            seen = (await waiting.read()).seen
            heard = asyncio.ensure_future(waiting.wait(b"\x10", seen, 10_000))
            writing = await place.open()
            batch = kv.Batch()
            key = b"\x10" + bytes([number])
            batch.absent(key)
            batch.put(key, b"")
            [outcome] = await writing.commit(batch)
            await writing.close()
            assert isinstance(outcome, kv.Ok)
            assert await heard
    finally:
        await place.aclose()
