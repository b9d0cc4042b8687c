"""Wake-ups. They are hints, so all that is asked: a write that matters wakes its waiter long before the timeout."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.conformance import batches
from tests.conformance.child import Child
from tests.conformance.kits import Kit
from worldline.base import limits
from worldline.store import kv

LONG_MS = 60_000
SOON_SECONDS = 60.0


async def _woken(waiting: asyncio.Future[bool]) -> bool:
    async with asyncio.timeout(SOON_SECONDS):
        return await waiting


async def _waiting(engine: kv.Engine, prefix: bytes) -> asyncio.Future[bool]:
    """A waiter that has read and has begun to wait."""
    seen = (await engine.read()).seen
    waiting = asyncio.ensure_future(engine.wait(prefix, seen, LONG_MS))
    await asyncio.sleep(0.02)
    return waiting


def _append(name: str, prefix: bytes) -> kv.Batch:
    batch = batches.once(name)
    batch.append(prefix, b"x")
    return batch


def _add(name: str, key: bytes) -> kv.Batch:
    batch = batches.once(name)
    batch.add(key, 1)
    return batch


WRITES: list[tuple[str, kv.Batch]] = [
    ("put of a key below", batches.create(b"w/1/2", b"x")),
    ("put of the prefix itself", batches.create(b"w/1/", b"x")),
    ("append", _append("append", b"w/1/")),
    ("append further below", _append("below", b"w/1/2/3/")),
    ("counter", _add("counter", b"w/1/count")),
]


@pytest.mark.parametrize("same", [True, False], ids=["same engine", "another engine"])
async def test_a_write_under_the_prefix_wakes_a_waiter(kit: Kit, same: bool) -> None:
    engine = await kit.open()
    writer = engine if same else await kit.open()
    for name, batch in WRITES:
        waiting = await _waiting(engine, b"w/1/")
        await batches.ok(writer, batch)
        assert await _woken(waiting), name


@pytest.mark.parametrize("same", [True, False], ids=["same engine", "another engine"])
async def test_a_write_between_read_and_wait_is_not_missed(kit: Kit, same: bool) -> None:
    engine = await kit.open()
    writer = engine if same else await kit.open()
    for turn in range(5):
        seen = (await engine.read(batches.under(b"w/"))).seen
        await batches.ok(writer, _append(str(turn), b"w/"))
        assert await _woken(asyncio.ensure_future(engine.wait(b"w/", seen, LONG_MS)))


async def test_an_old_seen_beyond_what_is_remembered_means_maybe(kit: Kit) -> None:
    engine = await kit.open()
    seen = (await engine.read()).seen
    calls = [batches.once(index) for index in range(limits.HINT_RING_MAX + 1)]
    for start in range(0, len(calls), 100):
        await engine.commit(*calls[start : start + 100])
    await batches.ok(engine, batches.create(b"w/1", b""))
    assert await _woken(asyncio.ensure_future(engine.wait(b"w/", seen, LONG_MS)))


async def test_a_wait_ends_at_its_timeout(kit: Kit) -> None:
    engine = await kit.open()
    seen = (await engine.read()).seen
    began = time.monotonic()
    assert await engine.wait(b"w/", seen, 50) is False
    assert 0.04 <= time.monotonic() - began < SOON_SECONDS
    assert await engine.wait(b"w/", seen, 0) is False


async def test_every_waiter_of_every_prefix_met_is_woken(kit: Kit) -> None:
    engine = await kit.open()
    prefixes = [b"w", b"w/", b"w/1", b"w/1/", b"w/1/2", b"w/1/", b"w/"]
    waiting = [await _waiting(engine, prefix) for prefix in prefixes]
    await batches.ok(engine, batches.create(b"w/1/2", b"x"))
    assert [await _woken(each) for each in waiting] == [True] * len(prefixes)


async def test_waiters_of_all_batches_of_a_call_are_woken(kit: Kit) -> None:
    engine, writer = await kit.open(), await kit.open()
    waiting = [await _waiting(engine, b"w/%03d/" % index) for index in range(0, 300, 50)]
    calls = [_append(str(index), b"w/%03d/" % index) for index in range(300)]
    assert all(isinstance(outcome, kv.Ok) for outcome in await writer.commit(*calls))
    assert [await _woken(each) for each in waiting] == [True] * len(waiting)


async def test_waiters_are_woken_by_a_batch_of_very_many_keys(kit: Kit) -> None:
    """More keys than a hint can name: then it must say less, not nothing."""
    engine, writer = await kit.open(), await kit.open()
    waiting = [await _waiting(engine, b"w/%04d/" % index) for index in (0, 999, 1999)]
    batch = batches.once(1)
    for index in range(2000):
        batch.put(b"w/%04d/" % index + bytes(200), b"")
    await batches.ok(writer, batch)
    assert [await _woken(each) for each in waiting] == [True] * 3


async def test_a_cancelled_waiter_leaves_the_others_waiting(kit: Kit) -> None:
    engine = await kit.open()
    first, second = await _waiting(engine, b"w/"), await _waiting(engine, b"w/")
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await batches.ok(engine, batches.create(b"w/1", b"x"))
    assert await _woken(second)


async def test_a_write_of_another_process_wakes_a_waiter(durable_kit: Kit) -> None:
    engine = await durable_kit.open()
    child = await Child.start(durable_kit.place)
    for turn in range(3):
        waiting = await _waiting(engine, b"w/")
        await child.create(b"w/%d" % turn, b"x")
        assert await _woken(waiting)
        seen = (await engine.read()).seen
        await child.create(b"w/%d again" % turn, b"x")
        assert await _woken(asyncio.ensure_future(engine.wait(b"w/", seen, LONG_MS)))
    await child.stop()
    assert len(await batches.scan(engine, b"w/")) == 6
