"""Records as canonical bytes. The stored records themselves are in `tests/keys/test_values.py`."""

from __future__ import annotations

import enum
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldline.base import errors, limits
from worldline.codec import canonical, structs

quick = settings(deadline=None, derandomize=True, max_examples=300)


class Colour(enum.IntEnum):
    RED = 1
    BLUE = 2


class Inner(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    data: bytes | None = None
    size: int = 0

    def __post_init__(self) -> None:
        if self.data is not None and len(self.data) != self.size:
            raise ValueError("size and data differ")


class Outer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    name: str
    colour: Colour
    inner: Inner
    labels: dict[str, str] = {}
    flag: bool = False


class Left(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    number: int


class Right(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    number: int
    more: int = 7


Either: Any = Left | Right

GOLDEN: list[tuple[Any, Any, str]] = [
    (Inner, Inner(), "82f600"),
    (Inner, Inner(b"ab", 2), "8242616202"),
    (Outer, Outer("n", Colour.BLUE, Inner()), "85616e0282f600a0f4"),
    (
        Outer,
        Outer("n", Colour.RED, Inner(b"", 0), {"bb": "", "a": "x"}, flag=True),
        "85616e01824000a26161617862626260f5",
    ),
    (Either, Left(1), "820101"),
    (Either, Right(1), "83020107"),
]


@pytest.mark.parametrize(("kind", "record", "encoded"), GOLDEN)
def test_golden(kind: Any, record: Any, encoded: str) -> None:
    assert structs.encode(record).hex() == encoded
    found = structs.decode(kind, bytes.fromhex(encoded))
    assert found == record
    assert type(found) is type(record)


@quick
@given(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.sampled_from(Colour),
    st.one_of(st.none(), st.binary(max_size=40)),
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(codec="utf-8"))),
    st.booleans(),
)
def test_a_record_comes_back(name: str, colour: Colour, data: bytes | None, labels: dict[str, str], flag: bool) -> None:
    record = Outer(name, colour, Inner(data, 0 if data is None else len(data)), labels, flag)
    encoded = structs.encode(record)
    found = structs.decode(Outer, encoded)
    assert found == record
    assert type(found.colour) is Colour
    assert structs.encode(found) == encoded
    backwards = dict(reversed(labels.items()))
    assert structs.encode(msgspec.structs.replace(record, labels=backwards)) == encoded


@pytest.mark.parametrize(
    ("older", "record"),
    [
        (["n", 1, [None, 0]], Outer("n", Colour.RED, Inner())),
        (["n", 1, [], {"a": "b"}], Outer("n", Colour.RED, Inner(), {"a": "b"})),
    ],
)
def test_bytes_from_before_a_field_was_added_decode(older: list[Any], record: Outer) -> None:
    assert structs.decode(Outer, canonical.encode(older)) == record


@pytest.mark.parametrize(
    ("kind", "plain", "why"),
    [
        (Outer, None, "Expected `array`"),
        (Outer, {"name": "n"}, "Expected `array`"),
        (Outer, [], "at least length 3, got 0"),
        (Outer, ["n", 1], "at least length 3, got 2"),
        (Outer, ["n", 1, [], {}, False, 0], "at most length 5, got 6"),
        (Outer, ["n", 1, [None, 0, 0]], "at most length 2, got 3"),
        (Outer, [b"n", 1, []], "Expected `str`, got `bytes`"),
        (Outer, ["n", "1", []], "Expected `int`, got `str`"),
        (Outer, ["n", 1.0, []], "Expected `int`, got `float`"),
        (Outer, ["n", True, []], "Expected `int`, got `bool`"),
        (Outer, ["n", 3, []], "Invalid enum value 3"),
        (Outer, ["n", 1, ["YWI=", 2]], "Expected `bytes | null`, got `str`"),
        (Outer, ["n", 1, [b"ab", 2.0]], "Expected `int`, got `float`"),
        (Outer, ["n", 1, [b"ab", 3]], "size and data differ"),
        (Outer, ["n", 1, [], {"a": 1}], "Expected `str`, got `int`"),
        (Outer, ["n", 1, [], {}, 0], "Expected `bool`, got `int`"),
        (Either, [3, 1], "Invalid value 3"),
        (Either, ["1", 1], "Expected `int`, got `str`"),
        (Either, [1, 1, 7], "at most length 1, got 2"),
        (Either, [1], "at least length 2"),
        (Either, [], "at least length 1, got 0"),
    ],
)
def test_canonical_bytes_of_something_else_are_refused(kind: Any, plain: Any, why: str) -> None:
    with pytest.raises(errors.DecodeError) as caught:
        structs.decode(kind, canonical.encode(plain))
    assert why in str(caught.value)


@pytest.mark.parametrize("data", ["", "82f6", "82f60000", "9fff", "82f61800", "c2"])
def test_bytes_that_are_not_canonical_are_refused(data: str) -> None:
    with pytest.raises(errors.DecodeError):
        structs.decode(Inner, bytes.fromhex(data))


@pytest.mark.parametrize(
    "record",
    [
        Outer("\ud800", Colour.RED, Inner()),
        Outer("n", Colour.RED, Inner(), {"\udfff": ""}),
        Inner(None, 2**64),
        Inner(None, -(2**64) - 1),
    ],
)
def test_what_has_no_canonical_form_is_refused(record: Any) -> None:
    with pytest.raises(errors.EncodeError):
        structs.encode(record)


@quick
@given(st.binary(max_size=60))
def test_any_bytes_are_a_record_or_a_decode_error(data: bytes) -> None:
    for kind in (Inner, Outer, Either):
        try:
            record = structs.decode(kind, data)
        except errors.DecodeError:
            continue
        assert structs.decode(kind, structs.encode(record)) == record


class Listed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    inner: Inner
    several: tuple[int, ...] = (1, 2)


class Several(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    inner: Inner
    names: list[bytes] = []


class Nested(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    lists: list[list[int]] = []


class Painted(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    colour: Colour


class Mapped(msgspec.Struct, frozen=True):
    number: int


class Plain(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    number: int
    name: str
    data: bytes = b""
    is_so: bool = True


class Rows(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    rows: list[Plain] = []


@pytest.mark.parametrize(
    ("record", "shape"),
    [
        (Plain(-1, "ü", b"x"), structs._FIELDS),
        (Inner(b"ab", 2), structs._FLAT),
        (Right(1), structs._FLAT),
        (Painted(Colour.RED), structs._FLAT),
        (Mapped(1), structs._FLAT),
        (Outer("n", Colour.RED, Inner()), structs._DEEP),
        (Listed(Inner()), structs._DEEP),
        (Several(Inner(), [b"a", b"b"]), structs._LISTS),
        (Rows([Plain(1, "a"), Plain(2, "b")]), structs._LISTS),
        (Nested([[1], [2]]), structs._DEEP),
    ],
    ids=["scalars", "union", "tagged", "enum", "map", "map inside", "tuple", "list", "records", "lists of lists"],
)
def test_only_what_is_flat_by_its_type_is_encoded_without_a_look(record: Any, shape: int) -> None:
    assert structs._learn(type(record)) == shape
    plain = msgspec.to_builtins(record, builtin_types=(bytes,))
    assert structs.encode(record) == canonical.encode(plain)
    assert structs.decode(type(record), structs.encode(record)) == record


def test_a_list_with_more_items_than_may_be_read_is_refused() -> None:
    with pytest.raises(errors.ValueTooLarge):
        structs.encode(Several(Inner(), [b""] * (limits.CBOR_ITEMS_MAX + 1)))


def test_text_without_bytes_is_refused_in_flat_records_too() -> None:
    class Named(msgspec.Struct, frozen=True, array_like=True):
        name: str

    with pytest.raises(errors.EncodeError):
        structs.encode(Named("\ud800"))
