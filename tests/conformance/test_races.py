"""Several engines on one store, many callers at once: one wins, nobody's write is lost, nothing is seen by half."""

from __future__ import annotations

import asyncio
import random

from tests import aio
from tests.conformance import batches
from tests.conformance.kits import Kit
from worldline.store import kv


async def _engines(kit: Kit, count: int) -> list[kv.Engine]:
    return [await kit.open() for _ in range(count)]


async def _race(engines: list[kv.Engine], rivals: list[kv.Batch]) -> list[kv.Outcome]:
    """Commit every batch by a call of its own, all at once, spread over the engines."""
    calls = (engines[index % len(engines)].commit(batch) for index, batch in enumerate(rivals))
    return [outcome for [outcome] in await asyncio.gather(*calls)]


async def test_of_concurrent_creators_exactly_one_wins_and_the_others_see_its_bytes(kit: Kit) -> None:
    engines = await _engines(kit, 2)
    for turn in range(15):
        key = b"key/%d" % turn
        outcomes = await _race(engines, [batches.create(key, b"%d" % rival) for rival in range(8)])
        [winner] = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, kv.Ok)]
        lost = [outcome for outcome in outcomes if not isinstance(outcome, kv.Ok)]
        assert lost == [kv.Conflict(((key, b"%d" % winner),))] * 7
        assert await batches.get(engines[0], key) == b"%d" % winner


async def test_of_concurrent_batches_on_one_head_exactly_one_wins(kit: Kit) -> None:
    engines = await _engines(kit, 2)
    head = b"0"
    await batches.ok(engines[0], batches.create(b"head", head))
    for turn in range(15):
        rivals = []
        for rival in range(8):
            batch = batches.replace(b"head", head, b"%d by %d" % (turn, rival))
            batch.append(b"log/", b"%d by %d" % (turn, rival))
            rivals.append(batch)
        outcomes = await _race(engines, rivals)
        [winner] = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, kv.Ok)]
        head = b"%d by %d" % (turn, winner)
        lost = [outcome for outcome in outcomes if not isinstance(outcome, kv.Ok)]
        assert lost == [kv.Conflict(((b"head", head),))] * 7
    log = list((await batches.scan(engines[1], b"log/")).values())
    assert len(log) == 15
    assert log[-1] == head


async def test_two_batches_that_exclude_each_other_never_both_succeed(kit: Kit) -> None:
    """Each expects, without writing it, what the other changes. Exactly one must lose, whichever is first."""
    engines = await _engines(kit, 2)
    for turn in range(25):
        left, right = b"left/%d" % turn, b"right/%d" % turn
        await batches.fill(engines[0], {left: b"0", right: b"0"})
        rivals = []
        for mine, other in ((left, right), (right, left)):
            batch = batches.replace(mine, b"0", b"1")
            batch.expect(other, b"0")
            rivals.append(batch)
        outcomes = await _race(engines, rivals)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Conflict", "Ok"], turn
        assert [await batches.get(engines[0], key) for key in (left, right)].count(b"1") == 1


async def test_no_batch_under_an_old_epoch_follows_the_new_one(kit: Kit) -> None:
    """Writers expect the epoch without writing it; once it has moved, not one of them is let through."""
    engines = await _engines(kit, 3)
    await batches.ok(engines[0], batches.create(b"epoch", b"0"))
    moved = asyncio.Event()
    late: list[kv.Outcome] = []
    counts = [0] * 6

    async def writer(name: int) -> None:
        engine = engines[1 + name % 2]
        while True:
            began_late = moved.is_set()
            batch = batches.once(f"{name}.{counts[name]}")
            batch.expect(b"epoch", b"0")
            batch.append(b"log/", b"%d" % name)
            [outcome] = await engine.commit(batch)
            if isinstance(outcome, kv.Conflict):
                assert outcome == kv.Conflict(((b"epoch", b"1"),))
                return
            assert isinstance(outcome, kv.Ok)
            if began_late:
                late.append(outcome)
            counts[name] += 1

    async def mover() -> None:
        async def enough() -> bool:
            return min(counts) > 0 and sum(counts) >= 40

        await aio.until(enough)
        batch = batches.replace(b"epoch", b"0", b"1")
        batch.append(b"log/", b"moved")
        await batches.ok(engines[0], batch)
        moved.set()

    await asyncio.gather(*(writer(name) for name in range(len(counts))), mover())
    assert not late
    log = await batches.scan(engines[0], b"log/")
    assert len(log) == 1 + sum(counts)


async def test_concurrent_read_modify_write_loses_no_update(kit: Kit) -> None:
    engines = await _engines(kit, 2)
    await batches.ok(engines[0], batches.create(b"total", batches.number(0)))

    async def worker(name: int) -> None:
        engine, done = engines[name % 2], 0
        while done < 10:
            value = await batches.get(engine, b"total")
            assert value is not None
            batch = batches.replace(b"total", value, batches.number(int.from_bytes(value, "big") + 1))
            [outcome] = await engine.commit(batch)
            done += isinstance(outcome, kv.Ok)

    await asyncio.gather(*(worker(name) for name in range(5)))
    assert await batches.get(engines[0], b"total") == batches.number(50)


async def test_a_read_never_sees_half_of_a_batch(kit: Kit) -> None:
    """Every batch sets all keys to one value; every snapshot, by gets and by several ranges, must show one value."""
    engines = await _engines(kit, 3)
    keys = [b"r/%04d" % index for index in range(0, 400, 2)]
    padding = bytes(200)
    await batches.fill(engines[0], dict.fromkeys(keys, batches.number(0) + padding) | {b"head": batches.number(0)})
    stop = False

    async def writer(engine: kv.Engine) -> int:
        wrote = 0
        while not stop:
            head = await batches.get(engine, b"head")
            assert head is not None
            new = batches.number(int.from_bytes(head, "big") + 1)
            batch = batches.replace(b"head", head, new)
            for key in keys:
                batch.put(key, new + padding)
            # An odd neighbour that comes and goes with the same batch.
            if new[-1] % 2:
                batch.put(b"r/0101", new + padding)
            else:
                batch.delete(b"r/0101")
            [outcome] = await engine.commit(batch)
            wrote += isinstance(outcome, kv.Ok)
        return wrote

    async def reader() -> None:
        shown: dict[bytes, None] = {}
        while len(shown) < 25:
            snapshot = await engines[0].read(
                kv.Get(b"head"),
                kv.Range(b"r/", b"r/0200", 1000, 1 << 20),
                kv.Get(b"r/0100"),
                kv.Range(b"r/0200", b"r0", 1000, 1 << 20, reverse=True),
                kv.Get(b"r/0398"),
            )
            head = snapshot.value(0)
            assert head is not None
            items = [*snapshot.page(1).items, *snapshot.page(3).items]
            assert len(items) == len(keys) + head[-1] % 2
            values = [value for _, value in items] + [snapshot.value(2), snapshot.value(4)]
            assert values == [head + padding] * len(values)
            shown[head] = None
            await asyncio.sleep(0)

    writers = [asyncio.ensure_future(writer(engine)) for engine in engines[1:]]
    await reader()
    stop = True
    assert sum(await asyncio.gather(*writers)) >= 25 - 1


async def test_transfers_keep_their_sum_in_every_snapshot(kit: Kit) -> None:
    """Overlapping pairs of keys in every order, from two engines: no deadlock, no error, no money made."""
    engines = await _engines(kit, 2)
    accounts = [b"account/%d" % index for index in range(6)]
    await batches.fill(engines[0], dict.fromkeys(accounts, batches.number(100)))
    stop = False

    async def mover(name: int) -> None:
        choose, engine = random.Random(name), engines[name % 2]
        for turn in range(25):
            source, target = choose.sample(accounts, 2)
            snapshot = await engine.read(kv.Get(source), kv.Get(target))
            held, other = snapshot.value(0), snapshot.value(1)
            assert held is not None
            assert other is not None
            amount = choose.randrange(1, 5)
            batch = batches.once(f"{name}.{turn}")
            batch.expect(source, held)
            batch.expect(target, other)
            batch.put(source, batches.number(int.from_bytes(held, "big") - amount))
            batch.put(target, batches.number(int.from_bytes(other, "big") + amount))
            batch.add(b"moves", 1)
            [outcome] = await engine.commit(batch)
            assert not isinstance(outcome, kv.CommitUnknown)

    async def auditor() -> int:
        audits = 0
        while not stop:
            held = await batches.scan(engines[audits % 2], b"account/")
            assert sum(int.from_bytes(value, "big") for value in held.values()) == 600
            audits += 1
            await asyncio.sleep(0)
        return audits

    audit = asyncio.ensure_future(auditor())
    await asyncio.gather(*(mover(name) for name in range(6)))
    stop = True
    assert await audit > 3
    assert await batches.counter(engines[0], b"moves") == len(await batches.scan(engines[0], b"once/"))


async def test_concurrent_counters_add_up(kit: Kit) -> None:
    engines = await _engines(kit, 2)

    async def adder(name: int) -> None:
        for turn in range(20):
            batch = batches.once(f"{name}.{turn}")
            batch.add(b"sum", name - 3)
            batch.add(b"count", 1)
            await batches.ok(engines[name % 2], batch)

    await asyncio.gather(*(adder(name) for name in range(8)))
    assert await batches.counter(engines[0], b"sum") == 20 * sum(name - 3 for name in range(8))
    assert await batches.counter(engines[1], b"count") == 160


async def test_a_range_delete_removes_all_that_was_there_when_it_began(kit: Kit) -> None:
    """Creators and sweepers meet in one range. What was acked before a sweep began is gone when the sweep is acked."""
    engines = await _engines(kit, 2)
    acked: list[bytes] = []

    async def creator(name: int) -> None:
        for turn in range(12):
            key = b"swept/%d/%d" % (name, turn)
            batch = batches.create(key, b"1")
            batch.put(b"kept/%d/%d" % (name, turn), b"1")
            await batches.ok(engines[name % 2], batch)
            acked.append(key)

    async def sweeper(name: int) -> None:
        for turn in range(8):
            before = list(acked)
            batch = batches.once(f"sweep.{name}.{turn}")
            batch.delete_range(b"swept/", b"swept0")
            await batches.ok(engines[name % 2], batch)
            left = await batches.scan(engines[name % 2], b"swept/")
            assert not [key for key in before if key in left]
            await asyncio.sleep(0)

    await asyncio.gather(*(creator(name) for name in range(4)), sweeper(0), sweeper(1))
    assert len(await batches.scan(engines[0], b"kept/")) == 48
    await sweeper(2)
    assert await batches.scan(engines[1], b"swept/") == {}


async def test_a_crowd_of_callers_is_served(kit: Kit) -> None:
    """Far more at once than any engine has connections or takes into one group; one that is lost harms nobody."""
    engines = await _engines(kit, 2)
    await batches.ok(engines[0], batches.create(b"text", b"there"))

    async def call(index: int) -> None:
        batch = batches.create(b"crowd/%03d" % index, b"%d" % index)
        batch.append(b"log/", b"%d" % index)
        await batches.ok(engines[index % 2], batch)
        assert await batches.get(engines[(index + 1) % 2], b"crowd/%03d" % index) == b"%d" % index

    async def poison(index: int) -> None:
        batch = batches.create(b"poison/%d" % index, b"")
        batch.expect(b"text", b"elsewhere")
        batch.append(b"log/", b"poison")
        await batches.conflict(engines[index % 2], batch)

    await asyncio.gather(*(poison(index // 50) if index % 50 == 25 else call(index) for index in range(500)))
    assert len(await batches.scan(engines[0], b"crowd/")) == 490
    assert len(await batches.scan(engines[0], b"log/")) == 490
    assert await batches.scan(engines[0], b"poison/") == {}
