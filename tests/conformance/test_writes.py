"""What each kind of write leaves behind: puts, deletes, range deletes, counters, appends and stamps."""

from __future__ import annotations

import asyncio

import pytest

from tests.conformance import batches
from tests.conformance.kits import Kit
from worldline.base import limits
from worldline.store import kv

# In this order: bytes compare as unsigned, and a prefix comes before what it begins.
ODD_KEYS = [
    b"\x00",
    b"\x00\x00",
    b"\x00\x01",
    b"\x00\xff",
    b"\x01",
    b"'",
    b"A",
    b"\\",
    b"\\000",
    b"a",
    b"a\x00",
    b"a\x00b",
    b"a\xff",
    b"a\xff\xff",
    b"b",
    b"\x7f",
    b"\x80",
    b"\xc3\xa9",
    b"\xfe\xff",
    b"\xff",
    b"\xff\x00",
    b"\xff\xff",
    b"\xff" * limits.KEY_BYTES_MAX,
]


async def test_keys_are_bytes_in_unsigned_order(kit: Kit) -> None:
    engine = await kit.open()
    assert sorted(ODD_KEYS) == ODD_KEYS
    await batches.fill(engine, {key: key[::-1] for key in reversed(ODD_KEYS)})
    whole = kv.Range(b"\x00", b"\xff" * (limits.KEY_BYTES_MAX + 1))
    backwards = kv.Range(b"\x00", b"\xff" * (limits.KEY_BYTES_MAX + 1), reverse=True)
    snapshot = await engine.read(whole, backwards, *(kv.Get(key) for key in ODD_KEYS))
    assert snapshot.page(0).items == [(key, key[::-1]) for key in ODD_KEYS]
    assert snapshot.page(1).items == snapshot.page(0).items[::-1]
    assert snapshot.answers[2:] == [key[::-1] for key in ODD_KEYS]


async def test_an_empty_value_is_not_a_missing_key(kit: Kit) -> None:
    engine = await kit.open()
    await batches.ok(engine, batches.create(b"empty", b""))
    assert await batches.get(engine, b"empty") == b""
    assert await batches.scan(engine, b"e") == {b"empty": b""}
    assert await batches.conflict(engine, batches.create(b"empty", b"1")) == kv.Conflict(((b"empty", b""),))
    await batches.ok(engine, batches.replace(b"empty", b"", b"1"))
    await batches.ok(engine, batches.replace(b"empty", b"1", b""))
    batch = batches.once(1)
    batch.append(b"log/", b"")
    await batches.ok(engine, batch)
    assert list((await batches.scan(engine, b"log/")).values()) == [b""]


async def test_values_are_any_bytes(kit: Kit) -> None:
    engine = await kit.open()
    values = {b"v/%d" % index: value for index, value in enumerate([b"\x00", bytes(range(256)), b"\\x00", b"'; --"])}
    await batches.fill(engine, values)
    assert await batches.scan(engine, b"v/") == values
    for key, value in values.items():
        await batches.ok(engine, batches.replace(key, value, value + b"\x00"))
        await batches.conflict(engine, batches.replace(key, value, b""))


async def test_a_put_without_expectation_creates_and_overwrites(kit: Kit) -> None:
    engine = await kit.open()
    for turn in range(3):
        batch = batches.once(turn)
        batch.put(b"key", b"%d" % turn)
        await batches.ok(engine, batch)
        assert await batches.get(engine, b"key") == b"%d" % turn


async def test_a_delete_removes_a_key_if_it_is_there(kit: Kit) -> None:
    engine = await kit.open()
    await batches.fill(engine, {b"k/1": b"", b"k/2": b"", b"k/3": b""})
    for turn in range(2):
        batch = batches.once(turn)
        batch.delete(b"k/2")
        batch.delete(b"k/missing")
        await batches.ok(engine, batch)
        assert await batches.scan(engine, b"k/") == {b"k/1": b"", b"k/3": b""}
    await batches.ok(engine, batches.create(b"k/2", b"back"))
    assert await batches.get(engine, b"k/2") == b"back"


async def test_a_range_delete_removes_from_begin_to_before_end(kit: Kit) -> None:
    engine = await kit.open()
    keys = [b"r/a", b"r/b", b"r/b\x00", b"r/b\xff\xff", b"r/c", b"r/c\x00", b"r/d", b"r/e"]
    await batches.fill(engine, dict.fromkeys(keys, b"1"))
    batch = batches.once(1)
    batch.delete_range(b"r/b", b"r/c")
    batch.put(b"r/c", b"2")  # the first key behind the range
    batch.put(b"r/a\xff", b"2")  # the last one before it
    await batches.ok(engine, batch)
    left = {b"r/a": b"1", b"r/a\xff": b"2", b"r/c": b"2", b"r/c\x00": b"1", b"r/d": b"1", b"r/e": b"1"}
    assert await batches.scan(engine, b"r/") == left
    batch = batches.once(2)
    batch.delete_range(b"r/c\x00", b"r/e")  # overlaps the next, and both hold r/d
    batch.delete_range(b"r/d", b"r/d\x00")
    batch.delete_range(b"r/x", b"r/y")  # holds nothing
    await batches.ok(engine, batch)
    assert list(await batches.scan(engine, b"r/")) == [b"r/a", b"r/a\xff", b"r/c", b"r/e"]


async def test_a_range_delete_is_not_bounded_by_a_page(kit: Kit) -> None:
    engine = await kit.open()
    for start in range(0, 3000, 1000):
        await batches.fill(engine, {b"r/%04d" % index: bytes(100) for index in range(start, start + 1000)})
    await batches.ok(engine, batches.create(b"s", b"1"))
    batch = batches.once(1)
    batch.delete_range(b"r/0001", b"r0")
    await batches.ok(engine, batch)
    snapshot = await engine.read(batches.under(b"r/"), kv.Get(b"s"))
    assert snapshot.page(0).items == [(b"r/0000", bytes(100))]
    assert snapshot.value(1) == b"1"


COUNTS: list[tuple[str, list[int], int]] = [
    ("one", [1], 1),
    ("zero makes the key", [0], 0),
    ("up and down", [5, -7], -2),
    ("the largest", [2**63 - 1], 2**63 - 1),
    ("the smallest", [-(2**63)], -(2**63)),
    ("wraps above", [2**63 - 1, 1], -(2**63)),
    ("wraps below", [-(2**63), -1], 2**63 - 1),
    ("wraps all the way", [2**63 - 1, 2**63 - 1, 2], 0),
    ("crosses every byte", [255, 1, 65_279, 1, 2**32], 2**32 + 65_536),
]


async def test_counters_add_and_wrap_at_64_bits(kit: Kit) -> None:
    engine = await kit.open()
    for name, deltas, total in COUNTS:
        key = b"count/" + name.encode()
        for turn, delta in enumerate(deltas):
            batch = batches.once(f"{name}.{turn}")
            batch.add(key, delta)
            await batches.ok(engine, batch)
        value = await batches.get(engine, key)
        assert value == total.to_bytes(8, "little", signed=True), name


async def test_a_counter_takes_part_in_everything_else(kit: Kit) -> None:
    """Summed within a batch, deleted, put, expected and swept like any other key."""
    engine = await kit.open()
    batch = batches.once(1)
    batch.add(b"c", 3)
    batch.add(b"c", -10)
    await batches.ok(engine, batch)
    assert await batches.counter(engine, b"c") == -7
    batch = batches.once(2)
    batch.delete(b"c")
    await batches.ok(engine, batch)
    assert await batches.get(engine, b"c") is None
    batch = batches.once(3)
    batch.add(b"c", 2)
    await batches.ok(engine, batch)
    batch = batches.once(4)
    batch.expect(b"c", kv.counter_add(None, 2))
    batch.add(b"c", 1)
    await batches.ok(engine, batch)
    stale = batches.once(5)
    stale.expect(b"c", kv.counter_add(None, 2))
    stale.add(b"c", 1)
    assert await batches.conflict(engine, stale) == kv.Conflict(((b"c", kv.counter_add(None, 3)),))
    await batches.ok(engine, batches.replace(b"c", kv.counter_add(None, 3), kv.counter_add(None, 40)))
    batch = batches.once(6)
    batch.add(b"c", 2)
    await batches.ok(engine, batch)
    assert await batches.counter(engine, b"c") == 42
    batch = batches.once(7)
    batch.delete_range(b"c", b"d")
    await batches.ok(engine, batch)
    assert await batches.get(engine, b"c") is None


async def test_many_counts_of_one_key_in_one_call_add_up(kit: Kit) -> None:
    engine = await kit.open()
    calls = []
    for index in range(50):
        batch = batches.once(index)
        batch.add(b"c", index)
        calls.append(batch)
    assert await engine.commit(*calls) == [kv.Ok(())] * 50
    assert await batches.counter(engine, b"c") == sum(range(50))


async def test_appends_are_in_order_within_a_batch(kit: Kit) -> None:
    engine = await kit.open()
    batch = batches.once(1)
    for index in range(300):
        assert batch.append(b"log/", b"%d" % index) == index
    stamps = (await batches.ok(engine, batch)).stamps
    assert len(stamps) == 300
    assert list(stamps) == sorted(set(stamps))
    assert {len(stamp) for stamp in stamps} == {limits.STAMP_BYTES}
    assert list((await batches.scan(engine, b"log/")).items()) == [
        (b"log/" + stamp, b"%d" % index) for index, stamp in enumerate(stamps)
    ]


async def test_appends_of_later_batches_come_later(kit: Kit) -> None:
    engines = [await kit.open(), await kit.open()]
    stamps: list[kv.Stamp] = []
    for turn in range(20):
        batch = batches.once(turn)
        for _ in range(turn % 3):
            batch.append(b"log/", b"%d" % turn)
        done = await batches.ok(engines[turn % 2], batch)
        assert len(done.stamps) == turn % 3
        stamps += done.stamps
    assert stamps == sorted(set(stamps))
    values = list((await batches.scan(engines[0], b"log/")).values())
    assert values == [b"%d" % turn for turn in range(20) for _ in range(turn % 3)]


async def test_appends_under_different_prefixes_share_one_order(kit: Kit) -> None:
    engine = await kit.open()
    batch = batches.once(1)
    for index in range(6):
        batch.append([b"even/", b"odd/"][index % 2], b"%d" % index)
    stamps = (await batches.ok(engine, batch)).stamps
    assert list(stamps) == sorted(set(stamps))
    even, odd = await batches.scan(engine, b"even/"), await batches.scan(engine, b"odd/")
    assert even == {b"even/" + stamps[index]: b"%d" % index for index in (0, 2, 4)}
    assert odd == {b"odd/" + stamps[index]: b"%d" % index for index in (1, 3, 5)}


async def test_stamps_of_concurrent_batches_are_unique(kit: Kit) -> None:
    engines = [await kit.open(), await kit.open()]

    async def appender(name: int) -> list[kv.Stamp]:
        stamps: list[kv.Stamp] = []
        for turn in range(10):
            first, second = batches.once(f"{name}.{turn}.0"), batches.once(f"{name}.{turn}.1")
            for batch in (first, second):
                batch.append(b"log/", b"%d" % name)
                batch.append(b"log/", b"%d" % name)
            outcomes = await engines[name % 2].commit(first, second)
            mine = [stamp for outcome in outcomes if isinstance(outcome, kv.Ok) for stamp in outcome.stamps]
            assert len(mine) == 4
            assert not stamps or min(mine) > max(stamps)
            stamps += mine
        return stamps

    found = [stamp for stamps in await asyncio.gather(*(appender(name) for name in range(6))) for stamp in stamps]
    assert len(set(found)) == 240
    assert sorted(await batches.scan(engines[0], b"log/")) == sorted(b"log/" + stamp for stamp in found)


async def test_a_value_can_end_in_the_stamp_of_any_append(kit: Kit) -> None:
    engine = await kit.open()
    await batches.ok(engine, batches.create(b"old", b"1"))
    batch = batches.once(1)
    batch.append(b"a/", b"0")
    batch.append(b"b/", b"1")
    batch.append(b"a/", b"2")
    batch.put(b"s/last", b"last:", stamp=2)
    batch.put(b"s/first", b"", stamp=0)
    batch.put(b"s/again", b"\x00", stamp=0)
    batch.put(b"s/none", b"none")
    batch.put(b"old", b"1", stamp=1)
    first, second, third = (await batches.ok(engine, batch)).stamps
    assert await batches.scan(engine, b"s/") == {
        b"s/last": b"last:" + third,
        b"s/first": first,
        b"s/again": b"\x00" + first,
        b"s/none": b"none",
    }
    assert await batches.get(engine, b"old") == b"1" + second
    assert await batches.scan(engine, b"a/") == {b"a/" + first: b"0", b"a/" + third: b"2"}
    assert await batches.scan(engine, b"b/") == {b"b/" + second: b"1"}


async def test_an_appended_key_is_a_key_like_any_other(kit: Kit) -> None:
    engine = await kit.open()
    batch = batches.once(1)
    batch.append(b"log/", b"x")
    [stamp] = (await batches.ok(engine, batch)).stamps
    consume = kv.Batch()
    consume.expect(b"log/" + stamp, b"x")
    consume.delete(b"log/" + stamp)
    await batches.ok(engine, consume)
    assert await batches.scan(engine, b"log/") == {}
    await batches.conflict(engine, consume)


@pytest.mark.parametrize(
    ("value", "sum_"),
    [
        (b"", 1),
        (b"\xff", 256),
        (b"\xff" * 7, 2**56),
        (b"\xff" * 8, 0),
        (b"\xff" * 8 + b"rest", 0),
        (b"\x02" + bytes(7) + b"rest", 3),
    ],
    ids=["empty", "one", "seven", "eight", "minus one and more", "two and more"],
)
async def test_any_value_can_be_added_to(kit: Kit, value: bytes, sum_: int) -> None:
    """Eight bytes of it count, and what it lacks is zero: a batch that counts fails for no other reason than others."""
    engine = await kit.open()
    await batches.fill(engine, {b"value": value})
    batch = batches.once(1)
    batch.add(b"value", 1)
    await batches.ok(engine, batch)
    assert await batches.get(engine, b"value") == sum_.to_bytes(8, "little")
