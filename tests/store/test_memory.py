"""What only the reference engine promises: the environment's clock, stamps that count calls, and nothing durable."""

from __future__ import annotations

import asyncio

import pytest

from tests.conformance import batches
from worldline.base import env as envs
from worldline.base import errors
from worldline.store import kv, memory_engine


async def test_the_stores_time_is_the_environments() -> None:
    env = envs.FixedEnv(wall_us=1_000)
    engine = memory_engine.MemoryEngine(env)
    assert (await engine.read()).time_us == 1_000
    assert (await engine.read()).time_us == 1_000
    env.advance_us(5)
    assert (await engine.read()).time_us == 1_005


async def test_stamps_are_the_calls_number_and_the_place_in_it() -> None:
    """So that a simulated run has the same bytes every time."""
    engine = memory_engine.MemoryEngine(envs.FixedEnv())
    calls = []
    for name in range(3):
        batch = batches.once(name)
        batch.append(b"log/", b"1")
        batch.append(b"log/", b"2")
        calls.append(batch)
    taken = batches.create(b"once/0", b"")
    taken.append(b"log/", b"never")
    outcomes = await engine.commit(calls[0], taken, calls[1])
    assert outcomes[0] == kv.Ok((kv.stamp(1, 0), kv.stamp(1, 1)))
    assert outcomes[2] == kv.Ok((kv.stamp(1, 2), kv.stamp(1, 3)))
    assert await engine.commit(calls[2]) == [kv.Ok((kv.stamp(2, 0), kv.stamp(2, 1)))]
    assert (await engine.read(batches.under(b"log/"))).page(0).stable == kv.stamp(3, 0)


async def test_it_says_that_nothing_is_durable() -> None:
    durability = await memory_engine.MemoryEngine(envs.FixedEnv()).durability()
    assert not durability.full
    assert durability.settings["engine"] == "memory"


async def test_a_read_is_not_changed_by_later_commits() -> None:
    engine = memory_engine.MemoryEngine(envs.FixedEnv())
    await batches.fill(engine, {b"a": b"1", b"b": b"1"})
    snapshot = await engine.read(kv.Get(b"a"), kv.Range(b"a", b"c"))
    await batches.ok(engine, batches.replace(b"a", b"1", b"2"))
    assert snapshot.value(0) == b"1"
    assert snapshot.page(1).items == [(b"a", b"1"), (b"b", b"1")]


async def test_a_closed_engine_takes_nothing_more() -> None:
    engine = memory_engine.MemoryEngine(envs.FixedEnv())
    seen = (await engine.read()).seen
    await engine.close()
    await engine.close()
    with pytest.raises(errors.StoreUnavailable):
        await engine.read()
    with pytest.raises(errors.StoreUnavailable):
        await engine.commit(batches.create(b"a", b"1"))
    with pytest.raises(errors.StoreUnavailable):
        await engine.wait(b"a", seen, 0)


async def test_closing_wakes_those_who_wait() -> None:
    engine = memory_engine.MemoryEngine(envs.FixedEnv())
    waiting = asyncio.ensure_future(engine.wait(b"a", 0, 3_600_000))
    await asyncio.sleep(0)
    await engine.close()
    async with asyncio.timeout(60):
        assert await waiting
