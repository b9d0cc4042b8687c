"""All of a range, however large its pages are and in both directions, and what is left of it behind a page."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.conformance import batches
from worldline.base import env as envs
from worldline.store import kv, memory_engine, paging

KEYS = {b"k/%d" % number: b"v" * number for number in range(7)}


async def _filled() -> memory_engine.MemoryEngine:
    engine = memory_engine.MemoryEngine(envs.FixedEnv())
    await batches.fill(engine, {b"a": b"", **KEYS, b"z": b""})
    return engine


def _bounds() -> list[kv.Range]:
    return [
        kv.Range(b"k/", b"k0", count_max=count_max, bytes_max=bytes_max, reverse=reverse)
        for count_max in (1, 2, 3, 7, 100)
        for bytes_max in (1, 9, 10_000)
        for reverse in (False, True)
    ]


@pytest.mark.parametrize("asked", _bounds(), ids=str)
async def test_every_item_comes_once_and_in_order(asked: kv.Range) -> None:
    engine = await _filled()
    in_order = sorted(KEYS.items(), reverse=asked.reverse)
    pages = [page async for page in paging.RangePages(engine, asked)]
    assert [item for page in pages for item in page.items] == in_order
    assert all(len(page.items) <= asked.count_max for page in pages)
    assert [page.more for page in pages] == [True] * (len(pages) - 1) + [False]
    assert [item async for item in paging.RangeItems(engine, asked)] == in_order


async def test_an_empty_range_is_one_empty_page() -> None:
    engine = await _filled()
    assert [page.items async for page in paging.RangePages(engine, kv.Range(b"b", b"c"))] == [[]]
    assert [item async for item in paging.RangeItems(engine, kv.Range(b"b", b"c"))] == []


async def test_nothing_that_is_left_is_no_page() -> None:
    engine = await _filled()
    assert [page async for page in paging.RangePages(engine, None)] == []


@pytest.mark.parametrize("reverse", [False, True])
async def test_the_rest_keeps_the_bounds(*, reverse: bool) -> None:
    engine = await _filled()
    asked = kv.Range(b"k/", b"k0", count_max=3, bytes_max=1_000, reverse=reverse)
    rest = paging.rest_of(asked, (await engine.read(asked)).page(0))
    assert rest is not None
    assert (rest.count_max, rest.bytes_max, rest.reverse) == (3, 1_000, reverse)
    assert (rest.begin, rest.end) == ((b"k/", b"k/4") if reverse else (b"k/2\x00", b"k0"))


async def test_keys_that_go_between_two_pages_shift_nothing() -> None:
    engine = await _filled()
    seen: list[bytes] = []
    async for page in paging.RangePages(engine, kv.Range(b"k/", b"k0", count_max=2)):
        seen += [key for key, _ in page.items]
        gone = kv.Batch()
        for key, value in page.items:
            gone.expect(key, value)
            gone.delete(key)
        await batches.ok(engine, gone)
    assert seen == sorted(KEYS)


async def test_a_loop_that_is_left_reads_no_further_page_and_can_go_on() -> None:
    engine = await _filled()
    items = paging.RangeItems(engine, kv.Range(b"k/", b"k0", count_max=2))
    async for key, _ in items:
        if key == b"k/2":
            break
    assert [key async for key, _ in items] == list(islice(sorted(KEYS), 3, None))


async def test_the_time_is_that_of_the_last_page() -> None:
    env = envs.FixedEnv()
    engine = memory_engine.MemoryEngine(env)
    await batches.fill(engine, KEYS)
    pages = paging.RangePages(engine, kv.Range(b"k/", b"k0", count_max=3))
    async for _ in pages:
        assert pages.time_us == (await engine.read()).time_us
        await env.sleep(1)
