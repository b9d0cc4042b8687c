"""Powers: the double next to the exact power, whatever the C library says."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from worldline.flow_core.expressions import powers

INF = math.inf


@pytest.mark.parametrize(
    ("base", "exponent", "expected"),
    [
        (2, 2.5, 5.656854249492381),
        (2, 0.5, 2**0.5),
        (10, 64, 1e64),
        (10, 309, None),
        (-10, 309, None),
        (9007199254740991, 64, None),
        (2, 1023, 2.0**1023),
        (2, 1024, None),
        (2, -1074, 5e-324),
        (2, -1075, 0),
        (-2, 3, -8),
        (-2, -3, -0.125),
        (-8, 1 / 3, None),
        (0, 0, 1),
        (0, -1, None),
        (0, 2.5, 0),
        (9, 1.5, 27),
        (2.25, -1.5, 1 / 3.375),
        (1, 1e300, 1),
        (1.9, 1e300, None),
        (0.5, 1e300, 0),
        (1e300, 1.5, None),
        (1.0000000000000002, 1e16, 9.21143870499353),
        (5e-324, 0.5, 2.2227587494850775e-162),
        (INF, -2, 0),
        (INF, 2, None),
        (-INF, 3, None),
        (2, INF, None),
        (2, -INF, 0),
        (0.5, INF, 0),
        (0.5, -INF, None),
        (1, INF, None),
        (-1, -INF, None),
        (math.nan, 0, 1),
        (math.nan, 1, None),
        (2, math.nan, None),
        (1e308, 1e308, None),
        (1e-308, 1e308, 0),
        (2, 5e-324, 1),
    ],
)
def test_powers(base: float, exponent: float, expected: float | None) -> None:
    assert powers.raised(base, exponent) == expected


def test_no_c_library_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def unwanted(*_: Any) -> float:
        raise AssertionError("the C library is asked")

    for name in ("pow", "exp", "exp2", "log", "log2", "log10", "log1p", "expm1"):
        monkeypatch.setattr(math, name, unwanted, raising=False)
    assert powers.raised(2.7, 3.3) == 26.51553667817474


def is_nearest(found: float, base: float, number: int, parts: int) -> bool:
    """Whether no other double is nearer to base^(number/parts), compared in whole numbers: f^parts with base^number."""
    exact = Fraction(base) ** number
    low = (Fraction(found) + Fraction(math.nextafter(found, 0))) / 2
    high = (Fraction(found) + Fraction(math.nextafter(found, INF))) / 2
    return low**parts <= exact <= high**parts


bases = st.one_of(st.integers(1, 2**53 - 1), st.floats(1e-6, 1e6))


@given(base=bases, number=st.integers(-18, 18), parts=st.sampled_from([1, 2, 4, 8]))
@example(base=131_071**2, number=3, parts=2)
@example(base=2**53 - 1, number=5, parts=2)
@example(base=3, number=64, parts=2)
def test_no_other_double_is_nearer(base: float, number: int, parts: int) -> None:
    found = powers.raised(base, number / parts)
    assert found is not None
    assert is_nearest(found, base, number, parts) if number else found == 1


def test_a_power_in_the_middle_of_two_doubles_is_rounded_to_even() -> None:
    """s^3 is odd and has 54 bits: (s^2)^1.5 lies in the middle, and 60 digits alone would not say where it goes."""
    roots = [each for each in range(208_065, 262_143, 2) if (each**3).bit_length() == 54][:200]
    assert len(roots) == 200
    assert [each for each in roots if powers.raised(each * each, 1.5) != float(each**3)] == []
