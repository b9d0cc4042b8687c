from __future__ import annotations

import enum
import math
import tracemalloc
from collections import OrderedDict, UserDict
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import cbrrr
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codec import reference
from worldline.base import errors, limits
from worldline.codec import canonical

DEPTH = limits.CBOR_DEPTH_MAX
ITEMS = limits.CBOR_ITEMS_MAX
BYTES = limits.CBOR_BYTES_MAX
MIB = limits.MIB
BOMB_BYTES_MAX = 50 * MIB

quick = settings(deadline=None, derandomize=True, max_examples=300)

GOLDEN: list[tuple[Any, str]] = [
    (None, "f6"),
    (False, "f4"),
    (True, "f5"),
    (0, "00"),
    (1, "01"),
    (23, "17"),
    (24, "1818"),
    (255, "18ff"),
    (256, "190100"),
    (65535, "19ffff"),
    (65536, "1a00010000"),
    (2**32 - 1, "1affffffff"),
    (2**32, "1b0000000100000000"),
    (2**63, "1b8000000000000000"),
    (2**64 - 1, "1bffffffffffffffff"),
    (-1, "20"),
    (-24, "37"),
    (-25, "3818"),
    (-256, "38ff"),
    (-257, "390100"),
    (-(2**32), "3affffffff"),
    (-(2**32) - 1, "3b0000000100000000"),
    (-(2**64), "3bffffffffffffffff"),
    (0.0, "fb0000000000000000"),
    (-0.0, "fb8000000000000000"),
    (1.0, "fb3ff0000000000000"),
    (-4.1, "fbc010666666666666"),
    (5e-324, "fb0000000000000001"),
    (1.7976931348623157e308, "fb7fefffffffffffff"),
    (b"", "40"),
    (b"\x01\x02", "420102"),
    (b"x" * 24, "5818" + "78" * 24),
    ("", "60"),
    ("a", "6161"),
    ("\u00fc\u6c34\U00010151", "69c3bce6b0b4f0908591"),
    ("\x00", "6100"),
    ("x" * 23, "77" + "78" * 23),
    ("x" * 256, "790100" + "78" * 256),
    ([], "80"),
    ([1, [2, []]], "82018202" + "80"),
    ([None] * 24, "9818" + "f6" * 24),
    ({}, "a0"),
    ({"": 0}, "a16000"),
    ({"b": 1, "a": 2, "aa": 3, "": 4}, "a4" + "6004" + "616102" + "616201" + "62616103"),
    # Order is by bytes of UTF-8, shorter first: the letter beyond 16 bits has four bytes, the one below it three.
    ({"\U00010000": 1, "\uffff": 2, "zz": 3}, "a3" + "627a7a03" + "63efbfbf02" + "64f090808001"),
    (
        {"world": b"\x00\x11", "step": 7, "kind": "event", "payload": {"ok": True, "amount": -3}},
        "a4" + "646b696e64656576656e74" + "647374657007" + "65776f726c64420011"
        "677061796c6f6164" + "a2" + "626f6bf5" + "66616d6f756e7422",
    ),
]

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**64), 2**64 - 1),
        st.integers(-300, 300),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=30),
        st.binary(max_size=30),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=6), st.dictionaries(st.text(max_size=4), inner, max_size=6)),
    max_leaves=25,
)


def same(left: Any, right: Any) -> bool:
    """Equal, and of equal types all the way down: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    if type(left) is not type(right):
        return False
    if type(left) is list:
        return len(left) == len(right) and all(map(same, left, right))
    if type(left) is dict:
        return list(left) == list(right) and all(map(same, left.values(), right.values()))
    if type(left) is float:
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    return bool(left == right)


def nest(depth: int, *, inside: Any = None, as_map: bool = False) -> Any:
    """`depth` containers around `inside`; an empty list is the innermost when nothing is given."""
    value: Any = [] if inside is None else [inside]
    for _ in range(depth - 1):
        value = {"k": value} if as_map else [value]
    return value


def peak_bytes(call: Callable[[], object], raises: type[Exception]) -> int:
    """The most that was allocated at once while `call` failed."""
    tracemalloc.start()
    try:
        with pytest.raises(raises):
            call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("value", "encoded"), GOLDEN)
def test_golden(value: Any, encoded: str) -> None:
    data = bytes.fromhex(encoded)
    assert canonical.encode(value) == data
    assert reference.encode(value) == data
    found = canonical.decode(data)
    assert found == value
    assert type(found) is type(value)
    assert canonical.encode(found) == data


@quick
@given(VALUES)
def test_bytes_equal_the_reference_and_come_back(value: Any) -> None:
    data = canonical.encode(value)
    assert data == reference.encode(value)
    found = canonical.decode(data)
    assert same(found, reference.decode(data))
    assert canonical.encode(found) == data
    canonical._scan(data)


@quick
@given(st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=8), st.randoms(use_true_random=False))
def test_bytes_do_not_depend_on_the_order_of_insertion(value: dict[str, Any], random: Any) -> None:
    pairs = list(value.items())
    random.shuffle(pairs)
    assert canonical.encode(dict(pairs)) == canonical.encode(value)


def test_a_tuple_is_written_as_a_list() -> None:
    deep = {"a": ((1, "x"), [()], {"b": (None,)}), "c": b"raw"}
    assert canonical.decode(canonical.encode(deep)) == {"a": [[1, "x"], [[]], {"b": [None]}], "c": b"raw"}
    assert canonical.encode((1, 2)) == canonical.encode([1, 2])
    assert deep == {"a": ((1, "x"), [()], {"b": (None,)}), "c": b"raw"}, "the caller's value is left alone"


class Colour(enum.IntEnum):
    RED = 1


class Shape(enum.StrEnum):
    ROUND = "round"


class Text(str):
    __slots__ = ()


class Record(msgspec.Struct):
    a: int


class Loud(type):
    def __repr__(cls) -> str:
        raise RuntimeError("no name")


class Named(metaclass=Loud):
    pass


@pytest.mark.parametrize(
    "value",
    [
        2**64,
        -(2**64) - 1,
        1 << 100_000,
        math.nan,
        math.inf,
        -math.inf,
        "\ud800",
        "a\udfff",
        Colour.RED,
        Shape.ROUND,
        Text("a"),
        Decimal(1),
        1j,
        {1, 2},
        frozenset(),
        bytearray(b"a"),
        memoryview(b"a"),
        range(3),
        iter([]),
        object(),
        int,
        Ellipsis,
        OrderedDict(a=1),
        UserDict(a=1),
        Record(1),
        Named(),
        cbrrr.CID(b"\x01\x71\x12\x20" + b"\x00" * 32),
        {1: 2},
        {None: 2},
        {b"a": 2},
        {"a": 1, 2: 3},
        {Text("a"): 1, "b": 2},
        {Shape.ROUND: 1},
        {"\ud800": 1},
        dict.fromkeys(["\ud800", "\udc00", "a"], 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_canonical_form_is_refused(value: Any) -> None:
    for wrapped in (value, [value], {"a": value}, (1, value), [{"a": [value]}]):
        with pytest.raises(errors.EncodeError):
            canonical.encode(wrapped)


def cyclic_list() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def cyclic_map() -> Any:
    value: dict[str, Any] = {}
    value["a"] = [1, {"b": value}]
    return value


def doubling(leaf: Any, times: int) -> Any:
    """A value of a few hundred bytes that is 2**times leaves long when written out."""
    for _ in range(times):
        leaf = [leaf, leaf]
    return leaf


LONG_KEY_MAP = {"k" * MIB: 1, "l" * MIB: 2}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (cyclic_list(), "cyclic"),
        (cyclic_map(), "cyclic"),
        (nest(DEPTH + 1), "deeper"),
        (nest(DEPTH + 1, as_map=True), "deeper"),
        (nest(DEPTH, inside=()), "deeper"),
        (nest(200_000), "deeper"),
        (doubling(0, 60), "items"),
        (doubling([], 62), "items"),
        (doubling({}, 62), "items"),
        (doubling("x" * MIB, 6), "bytes"),
        (doubling(b"x" * MIB, 6), "bytes"),
        ([LONG_KEY_MAP] * 100_000, "bytes"),
        (["x" * MIB] * 100_000, "bytes"),
        (dict.fromkeys(map(str, range(64)), "x" * MIB), "bytes"),
        ([0] * (2 * ITEMS), "items"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_no_value_makes_the_encoder_run_away(value: Any, why: str) -> None:
    with pytest.raises(errors.EncodeError, match=why):
        canonical.encode(value)
    assert peak_bytes(lambda: canonical.encode(value), errors.EncodeError) < BOMB_BYTES_MAX


@pytest.mark.parametrize("as_map", [False, True])
@pytest.mark.parametrize("inside", [None, b"\x00" * 100, b"\x00" * 70_000, b"\x80" * 100])
def test_the_depth_limit_is_the_same_both_ways(as_map: bool, inside: Any) -> None:
    deepest = nest(DEPTH, inside=inside, as_map=as_map)
    assert canonical.decode(canonical.encode(deepest)) == deepest
    too_deep = nest(DEPTH + 1, inside=inside, as_map=as_map)
    with pytest.raises(errors.EncodeError, match="deeper"):
        canonical.encode(too_deep)
    with pytest.raises(errors.DecodeError, match="deeper"):
        canonical.decode(reference.encode(too_deep))


@quick
@given(VALUES)
def test_joined_parts_are_the_bytes_of_the_whole(value: Any) -> None:
    if type(value) is list:
        assert canonical.join_list([canonical.encode(each) for each in value]) == canonical.encode(value)
    elif type(value) is dict:
        assert canonical.join_map({key: canonical.encode(each) for key, each in value.items()}) == canonical.encode(
            value
        )


@pytest.mark.parametrize("count", [0, 1, 23, 24, 255, 256, 65_535, 65_536])
def test_containers_of_any_size_are_joined(count: int) -> None:
    assert canonical.join_list([b"\xf6"] * count) == canonical.encode([None] * count)
    keyed = {f"{number}-\u00fc": number for number in range(count)}
    assert canonical.join_map({key: canonical.encode(each) for key, each in keyed.items()}) == canonical.encode(keyed)


@pytest.mark.parametrize("as_map", [False, True])
def test_what_stands_in_other_containers_may_be_less_deep(as_map: bool) -> None:
    parts = canonical.encode(nest(DEPTH - 2, as_map=as_map), around=2)
    assert canonical.decode(canonical.join_list([canonical.join_map({"k": parts})])) == [
        {"k": nest(DEPTH - 2, as_map=as_map)}
    ]
    with pytest.raises(errors.EncodeError, match="deeper"):
        canonical.encode(nest(DEPTH - 1, as_map=as_map), around=2)


def test_the_depth_limit_counts_what_is_open_not_what_has_been() -> None:
    wide = [nest(DEPTH - 1) for _ in range(5)]
    assert canonical.decode(canonical.encode(wide)) == wide
    after = [nest(10), nest(DEPTH)]
    with pytest.raises(errors.DecodeError, match="deeper"):
        canonical.decode(reference.encode(after))


@pytest.mark.parametrize("at_limit", [[0] * (ITEMS - 1), [[0] * (ITEMS - 3), 0]], ids=["flat", "nested"])
def test_the_item_limit_is_the_same_both_ways(at_limit: list[Any]) -> None:
    assert canonical.decode(canonical.encode(at_limit)) == at_limit
    over = [*at_limit, 0]
    with pytest.raises(errors.EncodeError, match="items"):
        canonical.encode(over)
    with pytest.raises(errors.DecodeError, match="items"):
        canonical.decode(cbrrr.encode_dag_cbor(over))


def test_a_map_counts_its_keys_and_its_values() -> None:
    at_limit = {str(number): 0 for number in range(ITEMS // 2 - 1)}
    assert canonical.decode(canonical.encode([at_limit])) == [at_limit]
    over: list[Any] = [at_limit | {"x": 0}]
    with pytest.raises(errors.EncodeError, match="items"):
        canonical.encode(over)
    with pytest.raises(errors.DecodeError, match="items"):
        canonical.decode(cbrrr.encode_dag_cbor(over))


@pytest.mark.parametrize(("letter", "fill"), [(b"x", b"y"), ("x", "y"), ("\u6c34", "y")])
def test_the_byte_limit_is_the_same_both_ways(letter: Any, fill: Any) -> None:
    room = BYTES - 5  # after a head with a length of four bytes
    width = len(reference.encode(letter)) - 1
    at_limit = letter * (room // width) + fill * (room % width)
    data = canonical.encode(at_limit)
    assert len(data) == BYTES
    assert canonical.decode(data) == at_limit
    over = at_limit + fill
    with pytest.raises(errors.EncodeError, match="bytes"):
        canonical.encode(over)
    with pytest.raises(errors.DecodeError, match="the limit is"):
        canonical.decode(cbrrr.encode_dag_cbor(over))


MALFORMED: list[tuple[str, str]] = [
    ("", "empty"),
    ("18", "truncated integer"),
    ("1900", "truncated integer"),
    ("1b00000001000000", "truncated integer"),
    ("1800", "integer not shortest"),
    ("1817", "integer not shortest"),
    ("1900ff", "integer not shortest"),
    ("1a0000ffff", "integer not shortest"),
    ("1b00000000ffffffff", "integer not shortest"),
    ("3817", "negative not shortest"),
    ("3900ff", "negative not shortest"),
    ("1c", "reserved"),
    ("1d", "reserved"),
    ("1e", "reserved"),
    ("1f", "reserved"),
    ("5801" + "00", "length not shortest"),
    ("7801" + "61", "length not shortest"),
    ("9801" + "00", "count not shortest"),
    ("b801" + "616100", "count not shortest"),
    ("a1780161" + "00", "key length not shortest"),
    ("41", "truncated bytes"),
    ("61", "truncated text"),
    ("5bffffffffffffffff", "length beyond the end"),
    ("7bffffffffffffffff00", "length beyond the end"),
    ("7b7fffffffffffffff00", "length beyond the end"),
    ("5f4100ff", "indefinite bytes"),
    ("7f6161ff", "indefinite text"),
    ("9f00ff", "indefinite list"),
    ("bf616100ff", "indefinite map"),
    ("ff", "break"),
    ("81", "missing item"),
    ("8200", "missing item"),
    ("a1", "missing key"),
    ("a16161", "missing value"),
    ("9bffffffffffffffff", "count beyond the end"),
    ("9b1000000000000000", "count beyond the end"),
    ("bbffffffffffffffff", "count beyond the end"),
    ("0000", "trailing"),
    ("f6f6", "trailing"),
    ("a000", "trailing"),
    ("8080", "trailing"),
    ("a2616100616100", "duplicate key"),
    ("a26000" + "6000", "duplicate empty key"),
    ("a2616200616100", "unsorted keys"),
    ("a262616100616200", "longer key first"),
    ("a2" + "64f090808000" + "63efbfbf00", "longer key first, in bytes"),
    ("a10000", "integer key"),
    ("a1416100", "bytes key"),
    ("a1f600", "null key"),
    ("a18000", "list key"),
    ("62c328", "bad UTF-8"),
    ("61ff", "bad UTF-8"),
    ("62c080", "overlong"),
    ("63eda080", "surrogate"),
    ("64f4908080", "beyond Unicode"),
    ("a161ff00", "bad UTF-8 in a key"),
    ("a163eda08000", "surrogate in a key"),
    ("f90000", "float of 16 bits"),
    ("fa00000000", "float of 32 bits"),
    ("fb00000000000000", "truncated float"),
    ("fb7ff8000000000000", "NaN"),
    ("fbfff8000000000000", "NaN"),
    ("fb7ff0000000000001", "NaN"),
    ("fb7ff0000000000000", "infinity"),
    ("fbfff0000000000000", "infinity"),
    ("f97e00", "short NaN"),
    ("f7", "undefined"),
    ("e0", "simple 0"),
    ("f0", "simple 16"),
    ("f3", "simple 19"),
    ("f814", "simple 20 in two bytes"),
    ("f820", "simple 32"),
    ("f8ff", "simple 255"),
    ("fc", "reserved"),
    ("c000", "tag 0"),
    ("c11a514b67b0", "tag 1"),
    ("c249010000000000000000", "big integer"),
    ("d81e820102", "tag 30"),
    ("d9d9f700", "self-described"),
    ("d82a450001711220", "link"),
    ("d82a5825" + "00" + "01711220" + "00" * 32, "link"),
    ("a1616cd82a5825" + "00" + "01711220" + "00" * 32, "link in a map"),
    ("81d82a4100", "empty link"),
]


@pytest.mark.parametrize(("encoded", "what"), MALFORMED)
def test_malformed_bytes_are_refused(encoded: str, what: str) -> None:
    """Each alone, inside a list, and behind enough padding to take the path of long inputs."""
    data = bytes.fromhex(encoded)
    pad = reference.encode(b"\x80" * 100)
    long_pad = reference.encode(b"\x00" * 70_000)
    for whole in (data, b"\x81" + data, b"\x82" + pad + data, b"\x82" + long_pad + data):
        with pytest.raises(errors.DecodeError):
            canonical.decode(whole)
        with pytest.raises(reference.Refused):
            reference.decode(whole)


@pytest.mark.parametrize("found", [0x1C, 0x1F, 0x3F, 0x5C, 0x5F, 0x7F, 0x9F, 0xBF, 0xC2, 0xD8, 0xE0, 0xF7, 0xF9, 0xFF])
def test_the_scan_stops_at_a_head_it_cannot_skip(found: int) -> None:
    start = b"\x82" + reference.encode(b"\x80" * 100)
    with pytest.raises(errors.DecodeError, match=f"head {found:#04x} at byte {len(start)}$"):
        canonical.decode(start + bytes([found]) + b"\x00" * 200)


def test_messages_stay_short_and_hold_no_cause() -> None:
    keys = reference.encode("k" * MIB)
    for data in (b"\xa2" + keys + b"\x00" + keys + b"\x00", b"\x7a\x00\x10\x00\x00" + b"\xff" * MIB):
        with pytest.raises(errors.DecodeError) as caught:
            canonical.decode(data)
        assert len(str(caught.value)) < 300
        assert caught.value.__cause__ is None


# Built when used: together they are a quarter of a gigabyte.
BOMBS: dict[str, Callable[[], bytes]] = {
    "nine bytes": lambda: bytes.fromhex("9b1000000000000000"),
    "nine bytes, repeated": lambda: bytes.fromhex("9b1000000000000000") * 10_000,
    "a map of nine bytes": lambda: bytes.fromhex("bb1000000000000000"),
    "text of nine bytes": lambda: bytes.fromhex("7b1000000000000000"),
    "deep lists": lambda: b"\x81" * (16 * MIB),
    "deep lists, short": lambda: b"\x81" * 5_000,
    "deep lists of 23": lambda: b"\x97" * (16 * MIB),
    "deep lists of 23, short": lambda: b"\x97" * 60_000,
    "deep maps": lambda: b"\xa1\x61\x61" * (5 * MIB),
    "deep maps, short": lambda: b"\xa1\x61\x61" * 20_000,
    "deep lists and maps": lambda: b"\x81\xa1\x60" * (5 * MIB),
    "lists that each claim half": lambda: reference.head(4, 30_000) * 20_000,
    "lists that each claim half, short": lambda: reference.head(4, 2_000) * 1_300,
    "a few lists that each claim 16 KiB": lambda: reference.head(4, 16_100) * DEPTH + b"\x00" * (16_384 - 3 * DEPTH),
    "a few lists that each claim 64 KiB": lambda: reference.head(4, 65_000) * DEPTH + b"\x00" * (65_536 - 3 * DEPTH),
    "a few lists that each claim 1 MiB": lambda: reference.head(4, MIB - 500) * (DEPTH - 1) + b"\x00" * MIB,
    "a few lists that each claim 900,000": lambda: reference.head(4, 900_000) * 60 + b"\x00" * (15 * MIB),
    "one list of 15 Mi items": lambda: reference.head(4, 15 * MIB) + b"\x00" * (15 * MIB),
    "one map of 7 Mi pairs": lambda: reference.head(5, 7 * MIB) + b"\x60" * (15 * MIB),
    "a list of lists that claim the rest": lambda: (
        reference.head(4, 1000) + (b"\x80" * 9 + reference.head(4, 500_000)) * 50_000
    ),
    "over the size": lambda: b"\x5a\x01\x00\x00\x00" + b"\x00" * (16 * MIB),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_without_much_memory(name: str) -> None:
    data = BOMBS[name]()
    assert peak_bytes(lambda: canonical.decode(data), errors.DecodeError) < BOMB_BYTES_MAX


@pytest.mark.parametrize("name", ["lists that each claim half, short", "a few lists that each claim 1 MiB"])
def test_the_bombs_would_go_off(name: str) -> None:
    """The bound above means something: the decoder underneath reserves thousands of times their size, or hundreds."""
    data = BOMBS[name]()
    assert peak_bytes(lambda: cbrrr.decode_dag_cbor(data), ValueError) > 400 * len(data)


def test_long_inputs_are_decoded_as_short_ones() -> None:
    rows = [
        {"n": number, "id": bytes([number % 256]) * 16, "tags": ["x" * (number % 300), -number, 0.5]}
        for number in range(3_000)
    ]
    data = canonical.encode(rows)
    assert len(data) > 64 * limits.KIB
    assert canonical.decode(data) == rows
    for cut in (1, 1000, 65_536, len(data) - 1):
        with pytest.raises(errors.DecodeError):
            canonical.decode(data[:cut])
    with pytest.raises(errors.DecodeError):
        canonical.decode(data + b"\x00")


@pytest.mark.parametrize("size", [0, 10, 1_000, 1_100, 20_000])
def test_flat_values_are_decoded_the_same(size: int) -> None:
    value = [1, -1, b"x" * size, "y", b"", None, True]
    data = canonical.encode(value)
    assert canonical.decode_flat(data) == canonical.decode(data) == value
    for bad in (data[:-1], data + b"\x00", b"", b"\xff"):
        with pytest.raises(errors.DecodeError):
            canonical.decode_flat(bad)


def test_what_is_not_flat_is_bounded_all_the_same() -> None:
    """Long bytes are looked over as ever; short ones cannot be deep or declare much."""
    with pytest.raises(errors.DecodeError, match="nested deeper"):
        canonical.decode_flat(b"\x81" * 2_000 + b"\x00")
    short = b"".join(b"\x99\x03\xff" for _ in range(340))
    assert peak_bytes(lambda: canonical.decode_flat(short), errors.DecodeError) < 8 * limits.MIB
