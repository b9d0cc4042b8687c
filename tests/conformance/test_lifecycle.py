"""Opening, closing, re-opening; the store's clock."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.conformance import batches, kits
from tests.conformance.child import Child
from tests.conformance.kits import Kit
from worldline.base import env_os, errors
from worldline.store import kv

NEAR_US = 60_000_000


async def test_the_stores_time_increases_and_is_near_the_wall_clock(kit: Kit) -> None:
    engines = [await kit.open(), await kit.open()]
    previous = 0
    for turn in range(20):
        now = (await engines[turn % 2].read(kv.Get(b"x"))).time_us
        assert now >= previous
        assert abs(now - time.time_ns() // 1000) < NEAR_US
        previous = now
        await asyncio.sleep(0.001)
    first = (await engines[0].read()).time_us
    await asyncio.sleep(0.05)
    assert (await engines[0].read()).time_us - first >= 40_000, "the clock stands still"


async def test_a_closed_engine_answers_that_it_is_closed(kit: Kit) -> None:
    engine = await kit.open()
    await batches.ok(engine, batches.create(b"a", b"1"))
    seen = (await engine.read()).seen
    await engine.close()
    await engine.close()
    with pytest.raises(errors.StoreUnavailable):
        await engine.commit(batches.create(b"b", b"1"))
    with pytest.raises(errors.StoreUnavailable):
        await engine.read(kv.Get(b"a"))
    with pytest.raises(errors.StoreUnavailable):
        await engine.wait(b"a", seen, 1000)
    other = await kit.open()
    assert await batches.get(other, b"a") == b"1"
    assert await batches.get(other, b"b") is None


async def test_closing_wakes_those_who_wait(kit: Kit) -> None:
    engine = await kit.open()
    seen = (await engine.read()).seen
    waiting = asyncio.ensure_future(engine.wait(b"a", seen, 3_600_000))
    await asyncio.sleep(0)
    await engine.close()
    async with asyncio.timeout(60):
        assert await waiting


async def test_closing_one_engine_leaves_the_others_open(kit: Kit) -> None:
    first, second = await kit.open(), await kit.open()
    await batches.ok(first, batches.create(b"a", b"1"))
    await first.close()
    assert await batches.get(second, b"a") == b"1"
    await batches.ok(second, batches.replace(b"a", b"1", b"2"))
    third = await kit.open()
    assert await batches.get(third, b"a") == b"2"


async def test_closing_finishes_what_was_accepted(kit: Kit) -> None:
    engine, other = await kit.open(), await kit.open()
    calls = [asyncio.ensure_future(engine.commit(batches.create(b"a/%02d" % index, b""))) for index in range(40)]
    await asyncio.sleep(0)
    await engine.close()
    acked = []
    for index, outcome in enumerate(await asyncio.gather(*calls, return_exceptions=True)):
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, errors.StoreUnavailable)
        else:
            assert outcome == [kv.Ok(())]
            acked.append(b"a/%02d" % index)
    assert list(await batches.scan(other, b"a/")) == acked


async def test_a_caller_that_gives_up_disturbs_nobody(kit: Kit) -> None:
    """A cancelled commit is applied whole or not at all; the calls beside it have their answers."""
    engine = await kit.open()
    await batches.ok(engine, batches.create(b"warm", b""))
    for turn in range(10):
        calls = []
        for index in range(8):
            batch = batches.create(b"a/%d/%d" % (turn, index), b"")
            batch.put(b"b/%d/%d" % (turn, index), b"")
            calls.append(asyncio.ensure_future(engine.commit(batch)))
        for _ in range(turn % 5):
            await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert outcomes[1::2] == [[kv.Ok(())]] * 4
        reads = [asyncio.ensure_future(engine.read(kv.Get(b"warm"))) for _ in range(4)]
        await asyncio.sleep(0)
        for read in reads[::2]:
            read.cancel()
        answers = await asyncio.gather(*reads, return_exceptions=True)
        assert [answer.value(0) for answer in answers if isinstance(answer, kv.ReadResult)][-1] == b""
    # One more commit: what was cancelled and is still under way on this engine has been decided by then.
    await batches.ok(engine, batches.create(b"last", b""))

    a, b = await batches.scan(engine, b"a/"), await batches.scan(engine, b"b/")
    assert [key[1:] for key in a] == [key[1:] for key in b]
    assert {b"a/%d/%d" % (turn, index) for turn in range(10) for index in (1, 3, 5, 7)} <= a.keys()


async def test_an_engine_says_what_its_ok_is_worth(kit: Kit) -> None:
    engine = await kit.open()
    durability = await engine.durability()
    assert durability.full == (kit.name != "memory")
    assert durability.settings


async def test_a_store_opened_again_has_everything(durable_kit: Kit) -> None:
    engine = await durable_kit.open()
    batch = batches.once(1)
    batch.put(b"k/put", b"v" * 5000)
    batch.put(b"k/empty", b"")
    batch.add(b"k/count", -3)
    batch.put(b"k/stamped", b"", stamp=batch.append(b"k/log/", b"x"))
    [stamp] = (await batches.ok(engine, batch)).stamps
    before = await batches.scan(engine, b"k/")
    assert len(before) == 5
    await engine.close()
    engine = await durable_kit.open()
    assert await batches.scan(engine, b"k/") == before
    await batches.conflict(engine, batch)
    batch = batches.once(2)
    batch.add(b"k/count", 1)
    batch.append(b"k/log/", b"y")
    [later] = (await batches.ok(engine, batch)).stamps
    assert later > stamp, "stamps go on where they were"
    assert await batches.counter(engine, b"k/count") == -2


async def test_another_process_sees_what_was_acked_and_is_seen(durable_kit: Kit) -> None:
    engine = await durable_kit.open()
    await batches.ok(engine, batches.create(b"a", b"parent"))
    child = await Child.start(durable_kit.place)
    for turn in range(10):
        await child.create(b"child/%d" % turn, b"%d" % turn)
        assert await batches.get(engine, b"child/%d" % turn) == b"%d" % turn
        await batches.ok(engine, batches.create(b"parent/%d" % turn, b""))
    await child.stop()


async def test_a_missing_store_is_not_created_unasked(durable_kit: Kit) -> None:
    with pytest.raises(errors.StoreMissing):
        await kits.open_place(durable_kit.place, env_os.OsEnv(), create=False)
    engine = await durable_kit.open()
    await batches.ok(engine, batches.create(b"a", b"1"))
    again = await kits.open_place(durable_kit.place, env_os.OsEnv(), create=False)
    try:
        assert await batches.get(again, b"a") == b"1"
    finally:
        await again.close()
