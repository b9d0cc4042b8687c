"""Reads: gets and ranges, pages and their bounds."""

from __future__ import annotations

from tests.conformance import batches
from tests.conformance.kits import Kit
from worldline.base import errors, limits
from worldline.store import kv

KEYS = [b"p/%02d" % index for index in range(20)]  # each with a value of ten bytes: items of 14 bytes
ITEM_BYTES = 14


async def _filled(kit: Kit) -> kv.Engine:
    engine = await kit.open()
    await batches.fill(engine, {key: key + b"-value"[: 10 - len(key)] for key in KEYS} | {b"o": b"1", b"q": b"1"})
    return engine


async def test_a_read_of_nothing_still_tells_the_time(kit: Kit) -> None:
    engine = await kit.open()
    snapshot = await engine.read()
    assert snapshot.answers == []
    assert snapshot.time_us > 0


async def test_missing_keys_and_empty_ranges(kit: Kit) -> None:
    engine = await kit.open()
    snapshot = await engine.read(kv.Get(b"x"), kv.Range(b"x", b"y"), kv.Range(b"x", b"y", reverse=True))
    assert snapshot.value(0) is None
    for index in (1, 2):
        page = snapshot.page(index)
        assert page.items == []
        assert not page.more
        assert len(page.stable) == limits.STAMP_BYTES


async def test_answers_are_in_the_order_of_the_requests(kit: Kit) -> None:
    engine = await _filled(kit)
    snapshot = await engine.read(
        kv.Get(b"q"),
        kv.Range(b"p/03", b"p/05"),
        kv.Get(b"missing"),
        kv.Get(b"q"),
        kv.Range(b"p/03", b"p/05", reverse=True),
        kv.Range(b"n", b"o"),
        kv.Get(b"p/00"),
        kv.Range(b"p/03", b"p/05"),
    )
    assert [snapshot.value(index) for index in (0, 2, 3, 6)] == [b"1", None, b"1", b"p/00-value"[:10]]
    keys = [[key for key, _ in snapshot.page(index).items] for index in (1, 4, 5, 7)]
    assert keys == [[b"p/03", b"p/04"], [b"p/04", b"p/03"], [], [b"p/03", b"p/04"]]


RANGES: list[tuple[bytes, bytes, int, int]] = [  # begin, end, and the keys from..to that it holds
    (b"p/", b"p0", 0, 20),
    (b"p/00", b"p/19", 0, 19),
    (b"p/00", b"p/19\x00", 0, 20),
    (b"p/05", b"p/06", 5, 6),
    (b"p/05\x00", b"p/06", 6, 6),
    (b"p/05", b"p/05", 0, 0),
    (b"p/06", b"p/05", 0, 0),
    (b"p/0", b"p/1", 0, 10),
]


async def test_a_range_holds_begin_and_not_end(kit: Kit) -> None:
    engine = await _filled(kit)
    for begin, end, first, last in RANGES:
        snapshot = await engine.read(kv.Range(begin, end), kv.Range(begin, end, reverse=True))
        for page, expected in ((snapshot.page(0), KEYS[first:last]), (snapshot.page(1), KEYS[first:last][::-1])):
            assert [key for key, _ in page.items] == expected, (begin, end)
            assert not page.more


BOUNDS: list[tuple[int, int, int]] = [  # count_max, bytes_max, how many items the page has of 20
    (1, 1 << 20, 1),
    (2, 1 << 20, 2),
    (19, 1 << 20, 19),
    (20, 1 << 20, 20),
    (21, 1 << 20, 20),
    (1000, 1, 1),
    (1000, ITEM_BYTES - 1, 1),
    (1000, ITEM_BYTES, 1),
    (1000, 2 * ITEM_BYTES - 1, 1),
    (1000, 2 * ITEM_BYTES, 2),
    (1000, 2 * ITEM_BYTES + 1, 2),
    (1000, 20 * ITEM_BYTES - 1, 19),
    (1000, 20 * ITEM_BYTES, 20),
    (3, 2 * ITEM_BYTES, 2),
    (2, 3 * ITEM_BYTES, 2),
    (1, 1, 1),
]


async def test_a_page_stops_at_its_bounds_and_says_so(kit: Kit) -> None:
    engine = await _filled(kit)
    for count_max, bytes_max, expected in BOUNDS:
        for reverse in (False, True):
            page = (await engine.read(kv.Range(b"p/", b"p0", count_max, bytes_max, reverse))).page(0)
            keys = KEYS[::-1] if reverse else KEYS
            assert [key for key, _ in page.items] == keys[:expected], (count_max, bytes_max, reverse)
            assert page.more == (expected < 20), (count_max, bytes_max, reverse)


async def test_pages_put_together_are_the_range(kit: Kit) -> None:
    engine = await _filled(kit)
    for reverse in (False, True):
        for count_max, bytes_max in ((3, 1 << 20), (1000, 50), (20, 1 << 20), (1, 1)):
            keys: list[bytes] = []
            begin, end, more = b"p/", b"p0", True
            while more:
                page = (await engine.read(kv.Range(begin, end, count_max, bytes_max, reverse))).page(0)
                assert page.items
                keys += [key for key, _ in page.items]
                more = page.more
                begin, end = (begin, keys[-1]) if reverse else (keys[-1] + b"\x00", end)
            assert keys == (KEYS[::-1] if reverse else KEYS)


async def test_every_range_of_a_read_has_bounds_of_its_own(kit: Kit) -> None:
    engine = await _filled(kit)
    snapshot = await engine.read(*(kv.Range(b"p/", b"p0", count) for count in (1, 5, 100)))
    assert [len(snapshot.page(index).items) for index in range(3)] == [1, 5, 20]
    assert [snapshot.page(index).more for index in range(3)] == [True, True, False]


async def test_the_first_item_comes_however_large_it_is(kit: Kit) -> None:
    engine = await kit.open()
    large = bytes(limits.VALUE_BYTES_MAX)
    await batches.fill(engine, {b"p/1": large, b"p/2": b"", b"p/3": large})
    for reverse, first in ((False, b"p/1"), (True, b"p/3")):
        page = (await engine.read(kv.Range(b"p/", b"p0", 10, 100, reverse))).page(0)
        assert page.items == [(first, large)]
        assert page.more


async def test_a_page_without_bounds_asked_for_has_the_default_ones(kit: Kit) -> None:
    engine = await kit.open()
    count = limits.RANGE_COUNT_DEFAULT + 1
    await batches.fill(engine, {b"small/%05d" % index: b"" for index in range(count)})
    await batches.fill(engine, {b"large/%02d" % index: bytes(limits.VALUE_BYTES_MAX) for index in range(17)})
    snapshot = await engine.read(kv.Range(b"small/", b"small0"), kv.Range(b"large/", b"large0"))
    assert (len(snapshot.page(0).items), snapshot.page(0).more) == (limits.RANGE_COUNT_DEFAULT, True)
    fits = limits.RANGE_BYTES_DEFAULT // (limits.VALUE_BYTES_MAX + 8)
    assert (len(snapshot.page(1).items), snapshot.page(1).more) == (fits, True)


BAD_REQUESTS: list[tuple[str, kv.Request]] = [
    ("no count", kv.Range(b"a", b"b", 0)),
    ("a negative count", kv.Range(b"a", b"b", -1)),
    ("no bytes", kv.Range(b"a", b"b", 1, 0)),
    ("the empty key", kv.Get(b"")),
    ("an empty begin", kv.Range(b"", b"b")),
    ("an empty end", kv.Range(b"a", b"")),
]


async def test_a_bad_request_is_refused(kit: Kit) -> None:
    engine = await kit.open()
    for name, request in BAD_REQUESTS:
        error = None
        try:
            await engine.read(kv.Get(b"a"), request)
        except errors.BadInput as raised:
            error = raised
        assert error is not None, name


async def test_a_snapshot_is_what_was_committed_before_it(kit: Kit) -> None:
    """A read that begins after an `Ok` sees it, on whatever engine."""
    engines = [await kit.open(), await kit.open()]
    await batches.ok(engines[0], batches.create(b"n", b"0"))
    for turn in range(30):
        await batches.ok(engines[turn % 2], batches.replace(b"n", b"%d" % turn, b"%d" % (turn + 1)))
        for engine in engines:
            assert await batches.get(engine, b"n") == b"%d" % (turn + 1)
