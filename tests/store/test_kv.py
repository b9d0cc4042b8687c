"""The shared parts of the interface: building and checking batches, conflicts, counters, pages."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.conformance import batches
from worldline.base import errors, limits
from worldline.store import kv


def test_a_batch_says_what_it_would_do() -> None:
    batch = kv.Batch()
    batch.absent(b"\x01")
    batch.expect(b"\x02", b"old")
    batch.delete_range(b"\x10", b"\x20")
    batch.delete(b"\x02")
    batch.put(b"\x01", b"new")
    batch.add(b"\x03", -2)
    batch.append(b"\x04", b"xyz")
    assert repr(batch) == (
        "Batch(absent 01; expect 02; delete [10, 20); delete 02; put 01 (3 bytes); add 03 -2; append 04 (3 bytes))"
    )
    assert repr(kv.Batch()) == "Batch()"


WRITES: dict[str, Callable[[kv.Batch], object]] = {
    "put": lambda batch: batch.put(b"k", b"1"),
    "delete": lambda batch: batch.delete(b"k"),
    "add": lambda batch: batch.add(b"k", 1),
}


def test_a_key_is_written_at_most_once() -> None:
    for first, second in itertools.product(WRITES, WRITES):
        batch = kv.Batch()
        WRITES[first](batch)
        if first == second != "put":
            WRITES[second](batch)  # deleting twice is deleting once, and counts add up
            assert (batch.deletes, batch.counts) in (({b"k": None}, {}), ({}, {b"k": 2}))
        else:
            with pytest.raises(errors.BatchRefused):
                WRITES[second](batch)


def test_expectations_may_be_repeated_but_not_differ() -> None:
    batch = kv.Batch()
    batch.expect(b"a", b"1")
    batch.expect(b"a", b"1")
    batch.absent(b"b")
    batch.absent(b"b")
    with pytest.raises(errors.BatchRefused):
        batch.expect(b"a", b"2")
    with pytest.raises(errors.BatchRefused):
        batch.absent(b"a")
    with pytest.raises(errors.BatchRefused):
        batch.expect(b"b", b"1")
    assert batch.expects == {b"a": b"1", b"b": None}


def test_appends_are_numbered() -> None:
    batch = kv.Batch()
    assert [batch.append(b"log/", b"") for _ in range(3)] == [0, 1, 2]


def test_check_tells_the_bytes_of_a_batch() -> None:
    batch = kv.Batch()
    batch.expect(b"ab", b"123")  # 5
    batch.put(b"ab", b"1", stamp=batch.append(b"log", b"1234"))  # 2 + 13, and 15 + 4
    batch.delete(b"xyz")  # 3
    batch.add(b"c", 1)  # 9
    batch.delete_range(b"q", b"r")  # 2
    assert kv.check(batch) == 5 + 15 + 19 + 3 + 9 + 2


def test_guards_are_the_expectations_that_success_makes_false() -> None:
    batch = kv.Batch()
    for key in (b"put", b"same", b"stamped", b"deleted", b"swept", b"unwritten", b"counted"):
        batch.expect(key, b"1")
    batch.absent(b"created")
    batch.put(b"created", b"1")
    batch.put(b"put", b"2")
    batch.put(b"same", b"1")
    batch.put(b"stamped", b"1", stamp=batch.append(b"log/", b""))
    batch.delete(b"deleted")
    batch.delete_range(b"swept", b"swepu")
    batch.add(b"counted", 1)
    assert sorted(kv.guards(batch)) == [b"created", b"deleted", b"put", b"stamped", b"swept"]


def _guarded() -> kv.Batch:
    """One guard of each kind."""
    batch = kv.Batch()
    batch.absent(b"created")
    batch.put(b"created", b"token")
    batch.expect(b"deleted", b"1")
    batch.delete(b"deleted")
    batch.expect(b"head", b"1")
    batch.put(b"head", b"digest", stamp=batch.append(b"log/", b""))
    batch.expect(b"epoch", b"7")
    return batch


STAMP = kv.stamp(5, 1)
OURS: dict[bytes, bytes | None] = {b"created": b"token", b"deleted": None, b"head": b"digest" + STAMP}
NOT_OURS: list[tuple[str, dict[bytes, bytes | None]]] = [
    ("another's token", {b"created": b"rival"}),
    ("the key is not there", {b"created": None}),
    ("the deleted key is back", {b"deleted": b"2"}),
    ("another's digest", {b"head": b"rivals" + STAMP}),
    ("our digest without a stamp", {b"head": b"digest"}),
    ("a missing head", {b"head": None}),
    ("shorter than a stamp", {b"head": b"d"}),
]


def test_applied_before_wants_every_guard_as_the_batch_leaves_it() -> None:
    batch = _guarded()
    assert kv.applied_before(batch, kv.Conflict(tuple(sorted(OURS.items()))))
    # That an unwritten expectation has failed since says nothing about the first time.
    later = kv.Conflict((*sorted((OURS | {b"epoch": b"8"}).items()),))
    assert kv.applied_before(batch, later)
    for name, change in NOT_OURS:
        assert not kv.applied_before(batch, kv.Conflict(tuple(sorted((OURS | change).items())))), name
    for missing in OURS:
        held = {key: value for key, value in OURS.items() if key != missing}
        assert not kv.applied_before(batch, kv.Conflict(tuple(sorted(held.items())))), "a guard still held"


def test_an_empty_value_with_a_stamp_is_not_shown_by_something_shorter() -> None:
    batch = kv.Batch()
    batch.absent(b"id")
    batch.put(b"id", b"", stamp=batch.append(b"log/", b""))
    assert kv.applied_before(batch, kv.Conflict(((b"id", bytes(STAMP)),)))
    for found in (b"", b"rival", STAMP[1:], STAMP + b"1"):
        assert not kv.applied_before(batch, kv.Conflict(((b"id", found),))), found


def test_a_conflict_knows_each_key() -> None:
    conflict = kv.Conflict(((b"a", b"1"), (b"b", None)))
    assert conflict.at(b"a") == (True, b"1")
    assert conflict.at(b"b") == (True, None)
    assert conflict.at(b"c") == (False, None)


def test_conflict_finds_what_does_not_hold() -> None:
    state = {b"a": b"1", b"b": b""}
    batch = kv.Batch()
    batch.expect(b"b", b"2")
    batch.expect(b"a", b"1")
    assert kv.conflict(batch, state.get) == kv.Conflict(((b"b", b""),))
    batch.absent(b"a2")
    batch.expect(b"0", b"")
    assert kv.conflict(batch, state.get) == kv.Conflict(((b"0", None), (b"b", b"")))
    assert kv.conflict(batches.replace(b"a", b"1", b"2"), state.get) is None


@pytest.mark.parametrize(
    ("begin", "end", "refused"),
    [
        (b"log/", b"log0", True),
        (b"log", b"log/", False),
        (b"log0", b"m", False),
        (b"log/" + b"\x00" * 12, b"log/" + b"\x00" * 11 + b"\x01", True),
        (b"log/" + b"\xff" * 12, b"log0", True),
        (b"a", b"z", True),
        (b"a", b"log/\x00", True),
    ],
)
def test_an_append_may_not_fall_into_a_deleted_range(begin: bytes, end: bytes, refused: bool) -> None:
    batch = batches.once(1)
    batch.append(b"log/", b"")
    batch.delete_range(begin, end)
    if begin <= b"once/1" < end:
        batch = kv.Batch()
        batch.absent(b"~")
        batch.put(b"~", b"")
        batch.append(b"log/", b"")
        batch.delete_range(begin, end)
    if refused:
        with pytest.raises(errors.BatchRefused):
            kv.check(batch)
    else:
        kv.check(batch)


@hypothesis.given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_a_counter_is_a_sum_modulo_64_bits(deltas: list[int]) -> None:
    value = None
    for delta in deltas:
        value = kv.counter_add(value, delta)
    total = 0 if value is None else kv.counter(value)
    assert (total - sum(deltas)) % 2**64 == 0
    assert -(2**63) <= total < 2**63


@pytest.mark.parametrize("value", [b"", b"1234567", b"123456789"])
def test_what_is_not_eight_bytes_is_no_counter(value: bytes) -> None:
    with pytest.raises(errors.DecodeError):
        kv.counter(value)


def test_stamps_order_by_version_then_ordinal() -> None:
    stamps = [kv.stamp(version, ordinal) for version in (0, 1, 255, 256, 2**63) for ordinal in (0, 1, 255, 256, 65_535)]
    assert stamps == sorted(stamps)
    assert {len(stamp) for stamp in stamps} == {limits.STAMP_BYTES}
    assert kv.stamp(0, 0) == kv.ZERO_STAMP


ITEMS = [(b"a", b"12"), (b"b", b""), (b"c", b"1234")]  # 3, 1 and 5 bytes


@pytest.mark.parametrize(
    ("count_max", "bytes_max", "count"),
    [(1, 99, 1), (2, 99, 2), (3, 99, 3), (4, 99, 3), (9, 1, 1), (9, 3, 1), (9, 4, 2), (9, 8, 2), (9, 9, 3), (9, 10, 3)],
)
def test_fill_page_stops_at_the_first_bound(count_max: int, bytes_max: int, count: int) -> None:
    page = kv.fill_page(iter(ITEMS), kv.Range(b"a", b"d", count_max, bytes_max), kv.ZERO_STAMP)
    assert page == kv.Page(ITEMS[:count], more=count < 3, stable=kv.ZERO_STAMP)


def test_fill_page_takes_no_more_than_one_item_beyond_the_page() -> None:
    items = iter(ITEMS)
    kv.fill_page(items, kv.Range(b"a", b"d", 1), kv.ZERO_STAMP)
    assert list(items) == ITEMS[2:]


def test_fill_page_of_nothing() -> None:
    assert kv.fill_page([], kv.Range(b"a", b"d"), STAMP) == kv.Page([], more=False, stable=STAMP)


def test_a_snapshot_does_not_mix_up_gets_and_ranges() -> None:
    page = kv.Page([], more=False, stable=kv.ZERO_STAMP)
    snapshot = kv.ReadResult([b"1", None, page], 0, 0)
    assert (snapshot.value(0), snapshot.value(1), snapshot.page(2)) == (b"1", None, page)
    with pytest.raises(AssertionError):
        snapshot.value(2)
    for index in (0, 1):
        with pytest.raises(AssertionError):
            snapshot.page(index)
