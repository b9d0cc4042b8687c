"""`stable`: nothing is ever skipped by a mark that respects it, and it moves on when writers are done."""

from __future__ import annotations

import asyncio
import random

from tests import aio
from tests.conformance import batches
from tests.conformance.kits import Kit
from worldline.base import limits
from worldline.store import kv

QUEUE = b"queue/"
APPENDERS = 8
TURNS = 12


async def _append_all(engines: list[kv.Engine], acked: dict[kv.Stamp, bytes]) -> None:
    """Many appenders on several engines; large and small batches, so that some take much longer than others."""

    async def appender(name: int) -> None:
        choose, engine = random.Random(name), engines[name % len(engines)]
        for turn in range(TURNS):
            batch = batches.once(f"{name}.{turn}")
            size = choose.choice([1, 1, 2, 200])
            values = [b"%d.%d.%d" % (name, turn, index) for index in range(size)]
            for value in values:
                batch.append(QUEUE, value)
            stamps = (await batches.ok(engine, batch)).stamps
            acked.update(zip(stamps, values, strict=True))

    await asyncio.gather(*(appender(name) for name in range(APPENDERS)))


def _next(stamp: bytes) -> bytes:
    """The stamp after this one, as a place to start reading."""
    return (int.from_bytes(stamp, "big") + 1).to_bytes(limits.STAMP_BYTES, "big")


async def test_a_consumer_that_starts_at_a_mark_misses_nothing(kit: Kit) -> None:
    """It deletes what it consumed, and starts the next scan at min(behind the last item, stable)."""
    engines = [await kit.open() for _ in range(4)]
    acked: dict[kv.Stamp, bytes] = {}
    consumed: dict[bytes, bytes] = {}
    mark: bytes = kv.ZERO_STAMP
    skipped = 0

    async def consume() -> None:
        nonlocal mark, skipped
        page = (await engines[0].read(kv.Range(QUEUE + mark, batches.after(QUEUE), 150))).page(0)
        if page.items:
            batch = kv.Batch()
            for key, value in page.items:
                assert key not in consumed
                batch.expect(key, value)
                batch.delete(key)
            await batches.ok(engines[0], batch)
            consumed.update(page.items)
            behind = _next(page.items[-1][0][len(QUEUE) :])
            assert min(behind, page.stable) >= mark, "a mark moves forwards only"
            skipped += min(behind, page.stable) > mark
            mark = min(behind, page.stable)

    appending = asyncio.ensure_future(_append_all(engines[1:], acked))
    while not appending.done():
        await consume()
        await asyncio.sleep(0)
    await appending

    async def all_consumed() -> bool:
        await consume()
        return len(consumed) >= len(acked)

    await aio.until(all_consumed)
    assert consumed == {QUEUE + stamp: value for stamp, value in acked.items()}
    assert await batches.scan(engines[0], QUEUE) == {}
    assert skipped > 2, "the mark never moved, so this proved nothing"


async def test_nothing_appears_below_stable_on_any_engine(kit: Kit) -> None:
    """Each page says what is settled; later pages, of other engines too, have nothing more below that."""
    engines = [await kit.open() for _ in range(4)]
    acked: dict[kv.Stamp, bytes] = {}
    settled: dict[bytes, bytes] = {}
    stable: bytes = kv.ZERO_STAMP

    async def follow(engine: kv.Engine) -> None:
        nonlocal stable, settled
        page = (await engine.read(batches.under(QUEUE))).page(0)
        below = {key: value for key, value in page.items if key[len(QUEUE) :] < stable}
        assert below == settled, "something appeared below stable"
        if page.stable > stable:
            stable = page.stable
            settled = {key: value for key, value in page.items if key[len(QUEUE) :] < stable}

    appending = asyncio.ensure_future(_append_all(engines[2:], acked))
    turn = 0
    while not appending.done():
        await follow(engines[turn % 2])
        turn += 1
        await asyncio.sleep(0)
    await appending

    async def all_settled() -> bool:
        await follow(engines[0])
        return len(settled) == len(acked)

    await aio.until(all_settled)
    assert settled == {QUEUE + stamp: value for stamp, value in acked.items()}


async def test_stable_moves_beyond_what_is_acked_and_later_stamps_stay_above_it(kit: Kit) -> None:
    engine = await kit.open()
    for turn in range(5):
        batch = batches.once(turn)
        batch.append(QUEUE, b"x")
        [stamp] = (await batches.ok(engine, batch)).stamps

        async def settled(stamp: kv.Stamp = stamp) -> bool:
            snapshot = await engine.read(kv.Range(b"elsewhere", b"f"), batches.under(QUEUE, reverse=True))
            assert snapshot.page(0).stable == snapshot.page(1).stable, "one snapshot, one stable"
            return snapshot.page(0).stable > stamp

        await aio.until(settled)
        before = (await engine.read(batches.under(QUEUE))).page(0).stable
        batch = batches.once(f"{turn} later")
        batch.append(QUEUE, b"y")
        [later] = (await batches.ok(engine, batch)).stamps
        assert later >= before


async def test_the_version_of_a_snapshot_changes_with_every_append(kit: Kit) -> None:
    """By whichever engine. Other writes may leave it as it is; an engine that cannot tell says 0."""
    here, there = await kit.open(), await kit.open()
    before = (await here.read()).version
    for number in range(20):
        engine = (here, there)[number % 2]
        batch = batches.once(f"{number}")
        if number % 3:
            batch.append(QUEUE, b"%d" % number)
        await batches.ok(engine, batch)
        after = (await here.read(kv.Range(QUEUE, QUEUE + b"\xff"))).version
        assert after == (await there.read()).version
        assert not number % 3 or after == 0 or after != before
        before = after


async def test_an_embedded_store_knows_its_version(kit: Kit) -> None:
    """So that a worker need not look into every inbox before each step."""
    engine = await kit.open()
    before = (await engine.read()).version
    await batches.ok(engine, batches.once("a"))
    assert (before == 0) == (kit.name == "postgres")
    assert (await engine.read()).version == before, "nothing was appended"
