"""JSON from outside: whatever the text is, a value or `BadInput` comes out."""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from worldline.base import errors, limits
from worldline.codec import outside_json

DEEP = limits.JSON_DEPTH_MAX
PIECES = [
    b"[",
    b"{",
    b"]",
    b"}",
    b'"',
    b"\\",
    b'\\"',
    b'"a":',
    b",",
    b"1",
    b'"[["',
    b'"\\\\"',
    b"[" * 50,
    b" ",
    b"\xff",
]


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
        b"[" * (DEEP + 1) + b"]" * (DEEP + 1),
        b'["\\\\",' + b"[" * DEEP,  # an escaped backslash ends no string
        b'"\\ud800x"',
        b'"\xed\xa0\x80"',
        b"\xff",
        b"",
        b"NaN",
        b"1e999",
        b"1" * 5_000,
        b'{"a"',
        '"\udcff"',  # an argument whose bytes are no UTF-8
    ],
)
def test_what_is_no_bounded_json_is_bad_input(text: bytes | str) -> None:
    with pytest.raises(errors.BadInput, match=r"^the body is ") as caught:
        outside_json.decode(text, what="the body")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200, "an error does not repeat the text"


def test_a_text_that_is_too_long_is_not_parsed() -> None:
    with pytest.raises(errors.TooLarge, match="the body is 12 bytes; the limit is 11"):
        outside_json.decode(b'"0123456789"', what="the body", bytes_max=11)


def test_brackets_in_strings_are_no_depth() -> None:
    text = json.dumps(["[{" * 1_000, '\\"[' * 1_000, "\\", ["["] * 1_000])
    assert outside_json.decode(text, what="it") == json.loads(text)


def test_as_deep_as_allowed_is_read_and_one_more_is_not() -> None:
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        core = b"[" + b"[]," * 1_000 + b"[]]"  # wide besides: two levels of its own
        assert outside_json.decode(opening * (DEEP - 2) + core + closing * (DEEP - 2), what="it")
        with pytest.raises(errors.BadInput, match="nested deeper"):
            outside_json.decode(opening * (DEEP - 1) + core + closing * (DEEP - 1), what="it")


def test_what_is_accepted_does_not_depend_on_the_stack_in_use() -> None:
    text = b"[" * DEEP + b"]" * DEEP

    def at(depth: int) -> Any:
        return at(depth - 1) if depth else outside_json.decode(text, what="it")

    assert at(0) == at((sys.getrecursionlimit() - DEEP) // 2)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.sampled_from(['[" {', "\\", '\\"[', "]"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
)


@given(VALUES, st.booleans())
@example(["\\", [], '"'], False)
def test_the_values_of_others_come_through(value: Any, escaped: bool) -> None:
    text = json.dumps(value, ensure_ascii=escaped)
    assert outside_json.decode(text, what="it") == msgspec.json.decode(text) == value


@given(VALUES)
def test_depth_is_counted_as_the_parser_counts_it(value: Any) -> None:
    text = json.dumps(value).encode()
    around = DEEP - _depth(value)
    assert outside_json.decode(b"[" * around + text + b"]" * around, what="it") is not None or value is None
    with pytest.raises(errors.BadInput, match="nested deeper"):
        outside_json.decode(b"[" * (around + 1) + b"[]," + text + b"]" * (around + 1), what="it")


def _depth(value: Any) -> int:
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    return 0


def test_any_bytes_are_read_or_refused() -> None:
    """Also where strings never end and brackets do not match: the parser is never asked for more than it may nest."""
    rng = random.Random(20_261_118)
    accepted = 0
    for _ in range(5_000):
        text = b"".join(rng.choices(PIECES, k=rng.randrange(1, 60)))
        try:
            outside_json.decode(text, what="it")
            accepted += 1
        except errors.BadInput:
            pass
    assert accepted
