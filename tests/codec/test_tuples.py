from __future__ import annotations

import enum
import types
import uuid
from typing import Any

import fdb
import fdb.tuple
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldline.base import errors, limits
from worldline.codec import tuples
from worldline.codec.tuples import Item, Stamp12, Uuid

# The tuple layer asks for one class of the native client, which need not be there.
if not hasattr(fdb, "impl"):
    fdb.impl = types.SimpleNamespace(Value=type("Value", (), {}))

UUID = Uuid(bytes(range(16)))
STAMP = Stamp12(b"\x00\x00\x01\x02\x03\x04\x05\x06\x07\xff\x00\x09")
INT_MOST = 2**64 - 1


def nest(depth: int) -> tuple[Item, ...]:
    value: tuple[Item, ...] = ()
    for _ in range(depth):
        value = (value,)
    return value


GOLDEN: list[tuple[tuple[Item, ...], str]] = [
    ((), ""),
    ((None,), "00"),
    ((b"",), "0100"),
    ((b"a\x00b\x00\x00",), "016100ff6200ff00ff00"),
    ((b"\xff\x00\xff",), "01ff00ffff00"),
    (("",), "0200"),
    (("F\u00d4O\u0000bar",), "0246c3944f00ff62617200"),
    (("\U0001f310",), "02f09f8c9000"),
    (((),), "0500"),
    (((None,),), "0500ff00"),
    ((("a", None, (b"\x00", None)), 1), "0502610000ff050100ff0000ff00001501"),
    ((0,), "14"),
    ((1,), "1501"),
    ((255,), "15ff"),
    ((256,), "160100"),
    ((65535, 65536), "16ffff17010000"),
    ((5551212,), "1754b46c"),
    ((2**32 - 1, 2**32), "18ffffffff190100000000"),
    ((2**63,), "1c8000000000000000"),
    ((INT_MOST,), "1cffffffffffffffff"),
    ((-1,), "13fe"),
    ((-255,), "1300"),
    ((-256,), "12feff"),
    ((-5551212,), "11ab4b93"),
    ((-(2**32),), "0ffeffffffff"),
    ((-INT_MOST,), "0c0000000000000000"),
    ((False, True), "2627"),
    ((UUID,), "30000102030405060708090a0b0c0d0e0f"),
    ((STAMP,), "330000010203040506" + "07ff0009"),
    ((1, UUID, 3, UUID, 7), "1501" + "30" + UUID.raw.hex() + "1503" + "30" + UUID.raw.hex() + "1507"),
    (("due", -1, None, b"x"), "0264756500" + "13fe" + "00" + "017800"),
]

BOUNDARIES = [sign * (2**bits + step) for bits in range(1, 64) for step in (-1, 0, 1) for sign in (1, -1)]

SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.binary(max_size=12),
    st.lists(st.sampled_from([b"\x00", b"\xff", b"\x01"]), max_size=5).map(b"".join),
    st.text(max_size=8),
    st.lists(st.sampled_from(["\x00", "\u00ff", "a", "\U00010000", "\uffff"]), max_size=4).map("".join),
    st.integers(-INT_MOST + 1, INT_MOST - 1),
    st.integers(-300, 300),
    st.sampled_from(BOUNDARIES),
    st.booleans(),
    st.binary(min_size=16, max_size=16).map(Uuid),
    st.binary(min_size=12, max_size=12).filter(lambda raw: raw[:10] != b"\xff" * 10).map(Stamp12),
)
ITEMS = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=8)
TUPLES = st.lists(ITEMS, max_size=5).map(tuple)
quick = settings(deadline=None, derandomize=True, max_examples=200)


def to_oracle(item: Any) -> Any:
    if isinstance(item, Uuid):
        return uuid.UUID(bytes=item.raw)
    if isinstance(item, Stamp12):
        return fdb.tuple.Versionstamp.from_bytes(item.raw)
    if isinstance(item, tuple):
        return tuple(to_oracle(part) for part in item)
    return item


def rank(item: Any) -> tuple[Any, ...]:
    """What the order means, without bytes: type first, then value, text by code point."""
    if item is None:
        return (0,)
    if isinstance(item, bool):
        return (5, item)
    if isinstance(item, tuple):
        return (3, tuple(rank(part) for part in item))
    if isinstance(item, str):
        return (2, [ord(letter) for letter in item])
    ranks: dict[type, int] = {bytes: 1, int: 4, Uuid: 6, Stamp12: 7}
    return (ranks[type(item)], item)


def sign(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


@pytest.mark.parametrize(("items", "encoded"), GOLDEN)
def test_golden(items: tuple[Item, ...], encoded: str) -> None:
    data = bytes.fromhex(encoded)
    assert tuples.pack(items) == data
    found = tuples.unpack(data)
    assert found == items
    assert [type(item) for item in found] == [type(item) for item in items]


@pytest.mark.parametrize("items", [items for items, _ in GOLDEN if INT_MOST not in items and -INT_MOST not in items])
def test_golden_is_the_oracles(items: tuple[Item, ...]) -> None:
    assert fdb.tuple.pack(to_oracle(items)) == tuples.pack(items)


@pytest.mark.parametrize("value", [INT_MOST, -INT_MOST])
def test_the_oracle_reads_the_widest_integers_though_it_writes_them_longer(value: int) -> None:
    assert fdb.tuple.unpack(tuples.pack((value,))) == (value,)
    assert len(fdb.tuple.pack((value,))) == len(tuples.pack((value,))) + 1


@quick
@given(TUPLES)
def test_bytes_equal_the_oracle_and_come_back(items: tuple[Item, ...]) -> None:
    data = tuples.pack(items)
    assert data == fdb.tuple.pack(to_oracle(items))
    assert fdb.tuple.unpack(data) == to_oracle(items)
    assert tuples.unpack(data) == items
    assert tuples.pack(tuples.unpack(data)) == data


@quick
@given(TUPLES, TUPLES)
def test_order_of_bytes_is_order_of_tuples(left: tuple[Item, ...], right: tuple[Item, ...]) -> None:
    by_bytes = sign(tuples.pack(left), tuples.pack(right))
    assert by_bytes == sign(rank(left), rank(right))
    assert by_bytes == fdb.tuple.compare(to_oracle(left), to_oracle(right))


@quick
@given(TUPLES, ITEMS, ITEMS)
def test_order_holds_after_a_common_start(start: tuple[Item, ...], left: Item, right: Item) -> None:
    assert sign(tuples.pack((*start, left)), tuples.pack((*start, right))) == sign(rank(left), rank(right))


def test_integers_sort_across_every_width() -> None:
    values = sorted({0, INT_MOST, -INT_MOST, *BOUNDARIES})
    keys = [tuples.pack((value,)) for value in values]
    assert keys == sorted(keys)
    assert len(keys) == len(values) == len({*keys})


@quick
@given(TUPLES, TUPLES)
def test_an_extension_starts_with_its_prefix_and_lies_in_its_range(
    start: tuple[Item, ...], more: tuple[Item, ...]
) -> None:
    prefix = tuples.pack(start)
    key = tuples.pack(start + more)
    assert key.startswith(prefix)
    if prefix:
        first, end = tuples.prefix_range(prefix)
        assert first <= key < end


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("01", "no end"),
        ("016161", "no end"),
        ("0161ff", "no end"),
        ("0100ff", "no end"),
        ("02", "no end"),
        ("0261", "no end"),
        ("02c300", "UTF-8"),
        ("02eda08000", "UTF-8"),  # a lone surrogate
        ("02c08000", "UTF-8"),  # an overlong zero
        ("02f4908080" + "00", "UTF-8"),  # beyond the last code point
        ("05", "nested tuple has no end"),
        ("051501", "nested tuple has no end"),
        ("0500ff", "nested tuple has no end"),
        ("05" * (limits.TUPLE_DEPTH_MAX + 1) + "00" * (limits.TUPLE_DEPTH_MAX + 1), "nested deeper"),
        ("05" * 100_000, "nested deeper"),
        ("15", "missing"),
        ("1601", "missing"),
        ("1cffffffffffffff", "missing"),
        ("0cffffffffffffff", "missing"),
        ("1500", "shortest"),
        ("160001", "shortest"),
        ("1600ff", "shortest"),
        ("1c00ffffffffffffff", "shortest"),
        ("13ff", "shortest"),  # minus zero
        ("12ff00", "shortest"),
        ("0cff00000000000000", "shortest"),
        ("0bf700000000000000", "type code 0x0b"),
        ("1d09010000000000000000", "type code 0x1d"),
        ("1d08ffffffffffffffff", "type code 0x1d"),
        ("2000000000", "type code 0x20"),
        ("218000000000000000", "type code 0x21"),
        ("03", "type code 0x03"),
        ("04", "type code 0x04"),
        ("25", "type code 0x25"),
        ("28", "type code 0x28"),
        ("ff", "type code 0xff"),
        ("00ff", "type code 0xff"),  # only inside a nested tuple is this None
        ("1501" + "ff", "type code 0xff"),
        ("30" + "00" * 15, "missing"),
        ("33" + "00" * 11, "missing"),
    ],
)
def test_malformed_bytes_are_refused(data: str, why: str) -> None:
    with pytest.raises(errors.DecodeError, match=why):
        tuples.unpack(bytes.fromhex(data))


class Colour(enum.IntEnum):
    RED = 1


class Shape(enum.StrEnum):
    ROUND = "round"


class Key(bytes):
    pass


@pytest.mark.parametrize(
    "item",
    [
        2**64,
        -(2**64),
        1 << 100_000,
        1.0,
        float("nan"),
        "\ud800",
        "a\udfffb",
        [],
        [1],
        {},
        bytearray(b"a"),
        memoryview(b"a"),
        uuid.UUID(int=0),
        Colour.RED,
        Shape.ROUND,
        Key(b"a"),
        object(),
        Uuid(b"\x00" * 15),
        Uuid(b"\x00" * 17),
        Uuid("x" * 16),  # type: ignore[arg-type]
        Stamp12(b"\x00" * 11),
        Stamp12(b"\x00" * 13),
        nest(limits.TUPLE_DEPTH_MAX),
        nest(100_000),
    ],
    ids=lambda item: type(item).__name__,
)
def test_what_has_no_key_is_refused(item: Any) -> None:
    for items in [(item,), (1, (item,))]:
        with pytest.raises(errors.EncodeError):
            tuples.pack(items)


def test_the_deepest_key() -> None:
    deepest = nest(limits.TUPLE_DEPTH_MAX)
    assert tuples.unpack(tuples.pack(deepest)) == deepest


@pytest.mark.parametrize(
    ("prefix", "end"),
    [
        (b"a", b"b"),
        (b"a\xff", b"b"),
        (b"a\xff\xff", b"b"),
        (b"\x00", b"\x01"),
        (b"\xfe", b"\xff"),
        (b"\xff\x00", b"\xff\x01"),
    ],
)
def test_prefix_range(prefix: bytes, end: bytes) -> None:
    assert tuples.prefix_range(prefix) == (prefix, end)


@pytest.mark.parametrize("prefix", [b"", b"\xff", b"\xff\xff"])
def test_a_prefix_without_end_is_refused(prefix: bytes) -> None:
    with pytest.raises(errors.EncodeError):
        tuples.prefix_range(prefix)


@quick
@given(
    st.lists(st.sampled_from([b"\x00", b"a", b"\xfe", b"\xff"]), min_size=1, max_size=4).map(b"".join),
    st.lists(st.sampled_from([b"\x00", b"a", b"b", b"\xfe", b"\xff"]), max_size=6).map(b"".join),
)
def test_prefix_range_holds_exactly_the_keys_with_that_prefix(prefix: bytes, key: bytes) -> None:
    if prefix.strip(b"\xff"):
        first, end = tuples.prefix_range(prefix)
        assert (first <= key < end) == key.startswith(prefix)


@quick
@given(st.binary(max_size=5), st.binary(max_size=6))
def test_nothing_sorts_between_a_key_and_its_successor(key: bytes, other: bytes) -> None:
    after = tuples.successor(key)
    assert key < after
    assert not key < other < after


def test_ids_and_stamps_are_frozen_ordered_and_hashable() -> None:
    assert Uuid(b"\x00" * 16) < Uuid(b"\x00" * 15 + b"\x01")
    assert Stamp12(b"\x00" * 12) < Stamp12(b"\x01" + b"\x00" * 11)
    assert {Uuid(b"a" * 16): 1}[Uuid(b"a" * 16)] == 1
    with pytest.raises(AttributeError):
        UUID.raw = b""  # type: ignore[misc]
