"""The limits, at the byte: what is just allowed works on every engine, one more is refused by all alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance import batches
from tests.conformance.kits import Kit
from worldline.base import errors, limits
from worldline.store import kv

KEY = limits.KEY_BYTES_MAX
VALUE = limits.VALUE_BYTES_MAX
STAMP = limits.STAMP_BYTES


def _put_key(size: int) -> kv.Batch:
    return batches.create(b"\xff" * size, b"1")


def _unwritten_key(size: int) -> kv.Batch:
    """In conflict when it is allowed: the key is not there."""
    batch = batches.once("unwritten")
    batch.expect(b"u" * size, b"1")
    return batch


def _delete_key(size: int) -> kv.Batch:
    batch = batches.once("delete")
    batch.delete(b"d" * size)
    return batch


def _counter_key(size: int) -> kv.Batch:
    batch = batches.once("counter")
    batch.add(b"c" * size, 1)
    return batch


def _append_prefix(size: int) -> kv.Batch:
    batch = batches.once("append")
    batch.append(b"a" * size, b"1")
    return batch


def _range_begin(size: int) -> kv.Batch:
    batch = batches.once("begin")
    batch.delete_range(b"r" * size, b"s")
    return batch


def _range_end(size: int) -> kv.Batch:
    batch = batches.once("end")
    batch.delete_range(b"r", b"r" * size)
    return batch


def _put_value(size: int) -> kv.Batch:
    return batches.create(b"large", b"\x00" * size)


def _stamped_value(size: int) -> kv.Batch:
    batch = batches.once("stamped")
    batch.put(b"stamped", b"\x00" * size, stamp=batch.append(b"log/", b"1"))
    return batch


def _append_value(size: int) -> kv.Batch:
    batch = batches.once("appended")
    batch.append(b"log/", b"\xff" * size)
    return batch


def _expected_value(size: int) -> kv.Batch:
    """In conflict when it is allowed."""
    return batches.replace(b"expected", b"\x00" * size, b"1")


def _batch_bytes(size: int) -> kv.Batch:
    """Puts of `size` bytes in all, keys and values and the guard's expectation."""
    batch = batches.create(b"size", b"")
    left = size - 2 * len(b"size")
    index = 0
    while left:
        key = b"part/%04d" % index
        value = min(VALUE, left - len(key))
        if 0 < left - len(key) - value < 2 * len(key):
            value -= 2 * len(key)  # leave room for one more key
        batch.put(key, bytes(value))
        left -= len(key) + value
        index += 1
    return batch


def _append_count(count: int) -> kv.Batch:
    batch = batches.once("count")
    for index in range(count):
        batch.append(b"n/", b"%d" % index)
    return batch


Case = tuple[Callable[[int], kv.Batch], int, type[kv.Ok] | type[kv.Conflict], type[errors.BadInput]]

CASES: list[Case] = [
    (_put_key, KEY, kv.Ok, errors.TooLarge),
    (_unwritten_key, KEY, kv.Conflict, errors.TooLarge),
    (_delete_key, KEY, kv.Ok, errors.TooLarge),
    (_counter_key, KEY, kv.Ok, errors.TooLarge),
    (_append_prefix, KEY - STAMP, kv.Ok, errors.TooLarge),
    (_range_begin, KEY, kv.Ok, errors.TooLarge),
    (_range_end, KEY + 1, kv.Ok, errors.TooLarge),  # exclusive: the end of everything is one byte longer than any key
    (_put_value, VALUE, kv.Ok, errors.TooLarge),
    (_stamped_value, VALUE - STAMP, kv.Ok, errors.TooLarge),
    (_append_value, VALUE, kv.Ok, errors.TooLarge),
    (_expected_value, VALUE, kv.Conflict, errors.TooLarge),
    (_batch_bytes, limits.BATCH_BYTES_MAX, kv.Ok, errors.TooLarge),
    (_append_count, limits.BATCH_APPENDS_MAX, kv.Ok, errors.BatchRefused),
]


@pytest.mark.parametrize(("build", "limit", "outcome", "error"), CASES, ids=[case[0].__name__[1:] for case in CASES])
async def test_at_the_limit_and_one_beyond(
    kit: Kit,
    build: Callable[[int], kv.Batch],
    limit: int,
    outcome: type[kv.Ok] | type[kv.Conflict],
    error: type[errors.BadInput],
) -> None:
    engine = await kit.open()
    with pytest.raises(error):
        await engine.commit(build(limit + 1))
    assert (await engine.read(kv.Range(b"\x00", b"\xff" * KEY))).page(0).items == []
    batch = build(limit)
    [done] = await engine.commit(batch)
    assert isinstance(done, outcome)
    if isinstance(done, kv.Conflict):
        return
    for put in batch.puts.values():
        expected = put.value if put.stamp is None else put.value + done.stamps[put.stamp]
        assert await batches.get(engine, put.key) == expected
    for append, stamp in list(zip(batch.appends, done.stamps, strict=True))[:: 1 + len(batch.appends) // 8]:
        assert await batches.get(engine, append.prefix + stamp) == append.value


async def test_the_most_appends_of_a_batch_are_in_order(kit: Kit) -> None:
    """Beyond 255 and 65,279 as well: an ordinal that wrapped or was stored the wrong way round would show here."""
    engine = await kit.open()
    stamps = (await batches.ok(engine, _append_count(limits.BATCH_APPENDS_MAX))).stamps
    assert len(stamps) == limits.BATCH_APPENDS_MAX
    items = (await engine.read(batches.under(b"n/"))).page(0).items
    assert items == [(b"n/" + stamp, b"%d" % index) for index, stamp in enumerate(stamps)]


async def test_many_large_batches_in_one_call(kit: Kit) -> None:
    """The limits are for one batch; a call of several such batches is allowed."""
    engine = await kit.open()
    calls = []
    for index in range(3):
        batch = batches.once(index)
        for part in range(60):
            batch.put(b"large/%d/%02d" % (index, part), bytes([index]) * VALUE)
        calls.append(batch)
    assert await engine.commit(*calls) == [kv.Ok(())] * 3
    page = (await engine.read(batches.under(b"large/"))).page(0)
    assert len(page.items) == 180
    assert all(value == bytes([key[6] - 48]) * VALUE for key, value in page.items)


async def test_keys_of_requests_have_the_same_limit(kit: Kit) -> None:
    engine = await kit.open()
    longest = b"\xff" * KEY
    await batches.ok(engine, batches.create(longest, b"1"))
    # An exclusive end may be one byte longer, or the last key there can be could not be read by a range.
    snapshot = await engine.read(kv.Get(longest), kv.Range(longest, longest + b"\x00"))
    assert snapshot.value(0) == b"1"
    assert snapshot.page(1).items == [(longest, b"1")]
    for request in (kv.Get(longest + b"0"), kv.Range(longest + b"0", longest + b"1"), kv.Range(b"a", longest + b"00")):
        with pytest.raises(errors.TooLarge):
            await engine.read(request)


async def test_the_number_of_requests_of_a_read(kit: Kit) -> None:
    engine = await kit.open()
    await batches.fill(engine, {b"g/%04d" % index: b"%d" % index for index in range(0, 4096, 7)})
    requests: list[kv.Request] = [kv.Get(b"g/%04d" % index) for index in range(limits.READ_REQUESTS_MAX)]
    requests[100] = kv.Range(b"g/0100", b"g/0120")
    snapshot = await engine.read(*requests)
    assert [key for key, _ in snapshot.page(100).items] == [b"g/0105", b"g/0112", b"g/0119"]
    for index in (0, 7, 4095, 4094, 50):
        assert snapshot.value(index) == (None if index % 7 else b"%d" % index)
    with pytest.raises(errors.BadInput):
        await engine.read(*requests, kv.Get(b"g"))


async def test_many_ranges_in_one_read(kit: Kit) -> None:
    engine = await kit.open()
    await batches.fill(engine, {b"i/%03d" % index: b"%d" % index for index in range(300)})
    snapshot = await engine.read(*(kv.Range(b"i/%03d" % index, b"i0", 2) for index in range(300)))
    for index in range(300):
        page = snapshot.page(index)
        assert [value for _, value in page.items] == [b"%d" % index, b"%d" % (index + 1)][: 300 - index]
        assert page.more == (index < 298)
