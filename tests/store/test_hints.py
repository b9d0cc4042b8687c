"""Hints inside one process: who is woken, what the ring remembers, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.conformance import batches
from worldline.base import limits
from worldline.store import hints, kv

LONG_MS = 60_000


async def _begin(noted: hints.HintBoard, prefix: bytes) -> asyncio.Task[bool]:
    waiting = asyncio.ensure_future(noted.wait(prefix, noted.seen, LONG_MS))
    await asyncio.sleep(0)
    assert not waiting.done()
    return waiting


MET: list[tuple[bytes, bytes, bool]] = [  # what is waited for, what is written, and whether that wakes
    (b"a/", b"a/", True),
    (b"a/", b"a/1", True),
    (b"a/", b"a", False),
    (b"a/", b"a0", False),
    (b"a/", b"b/a/", False),
    (b"", b"anything", True),
    (b"\xff", b"\xff\xff", True),
]


async def test_a_waiter_is_woken_by_keys_under_its_prefix_only() -> None:
    for prefix, key, woken in MET:
        noted = hints.HintBoard()
        waiting = await _begin(noted, prefix)
        noted.note([key])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert waiting.done() == woken, (prefix, key)
        noted.note(None)
        assert await waiting


async def test_what_was_noted_since_the_snapshot_ends_a_wait_at_once() -> None:
    for prefix, key, woken in MET:
        noted = hints.HintBoard()
        seen = noted.seen
        noted.note([b"~other", key])
        assert await noted.wait(prefix, seen, 0) == woken, (prefix, key)
        assert not await noted.wait(prefix, noted.seen, 0)


async def test_all_waiters_of_all_prefixes_met_are_woken() -> None:
    noted = hints.HintBoard()
    waiting = [await _begin(noted, prefix) for prefix in (b"a", b"a/", b"a/", b"a/1", b"b")]
    noted.note([b"a/1", b"a/1"])
    assert all(await asyncio.gather(*waiting[:4]))
    assert not waiting[4].done()
    noted.note([b"c", b"b1"])
    assert await waiting[4]


async def test_nobody_knows_what_means_everybody_looks() -> None:
    noted = hints.HintBoard()
    waiting = [await _begin(noted, prefix) for prefix in (b"a", b"b")]
    seen = noted.seen
    noted.note(None)
    assert await asyncio.gather(*waiting) == [True, True]
    assert await noted.wait(b"never written", seen, 0)


async def test_the_ring_remembers_so_many_hints_and_beyond_means_maybe() -> None:
    noted = hints.HintBoard()
    seen = noted.seen
    for _ in range(limits.HINT_RING_MAX):
        noted.note([b"other"])
    assert not await noted.wait(b"a", seen, 0), "all of these are remembered, and none was it"
    noted.note([b"other"])
    assert await noted.wait(b"a", seen, 0), "the first is forgotten, so it may have been"
    assert not await noted.wait(b"a", seen + 1, 0)


async def test_the_oldest_hint_in_the_ring_is_still_found() -> None:
    noted = hints.HintBoard()
    noted.note([b"before"])
    seen = noted.seen
    noted.note([b"a"])
    for _ in range(limits.HINT_RING_MAX - 1):
        noted.note([b"other"])
    assert await noted.wait(b"a", seen, 0)
    assert not await noted.wait(b"before", seen, 0)


async def test_a_wait_ends_at_its_timeout_and_leaves_nothing_behind() -> None:
    noted = hints.HintBoard()
    began = time.monotonic()
    assert await noted.wait(b"a", noted.seen, 30) is False
    assert time.monotonic() - began >= 0.025
    waiting = await _begin(noted, b"a")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    woken = await _begin(noted, b"a")
    noted.note([b"a"])
    assert await woken
    assert noted._waiting == {}


async def test_two_notes_in_one_turn_wake_once() -> None:
    noted = hints.HintBoard()
    waiting = await _begin(noted, b"a")
    noted.note([b"a"])
    noted.note([b"a"])
    assert await waiting


async def test_seen_comes_from_here() -> None:
    noted = hints.HintBoard()
    for seen in (1, -1):
        with pytest.raises(AssertionError):
            await noted.wait(b"a", seen, 0)


def test_what_a_batch_wrote() -> None:
    batch = batches.replace(b"put", b"1", b"2")
    batch.delete(b"deleted")
    batch.delete_range(b"r", b"s")
    batch.add(b"counted", 1)
    batch.append(b"log/", b"1")
    batch.append(b"other/", b"1")
    batch.append(b"log/", b"2")
    assert hints.written(batch) == [b"put", b"counted", b"log/", b"other/"]
    assert hints.written(kv.Batch()) == []
