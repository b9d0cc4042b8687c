"""Bytes in terms of other bytes: what comes back, and what is refused. (Bombs: `tests/layers/test_changes.py`.)"""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline.base import errors
from worldline.codec import delta


@given(st.binary(max_size=500), st.binary(max_size=500), st.binary(max_size=500))
def test_an_image_comes_back(start: bytes, middle: bytes, end: bytes) -> None:
    for image, base in ((start + middle + end, start + end), (start, middle), (b"", start), (start, b"")):
        assert delta.decode(delta.encode(image, base), base, length=len(image)) == image


def test_what_is_alike_takes_little() -> None:
    base = hashlib.shake_128(b"noise").digest(100_000)
    assert len(delta.encode(base[:50_000] + b"in between" + base[50_000:], base)) < 200


@pytest.mark.parametrize(
    "wrong", [lambda made: made[:-1], lambda made: made + b"x", lambda made: made[4:], lambda _: b""]
)
def test_a_damaged_delta_is_refused(wrong: object) -> None:
    made = delta.encode(b"image" * 100, b"base" * 100)
    assert callable(wrong)
    with pytest.raises(errors.DecodeError, match="delta"):
        delta.decode(wrong(made), b"base" * 100, length=500)


def test_a_delta_of_another_length_is_refused() -> None:
    made = delta.encode(b"image" * 100, b"base")
    for length in (499, 501, -1, 1 << 40):
        with pytest.raises(errors.DecodeError, match="a delta"):
            delta.decode(made, b"base", length=length)
