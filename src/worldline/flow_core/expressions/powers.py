"""Powers of doubles, the same on every machine.

The pow of a C library is within one unit in the last place, and each library rounds other cases wrongly: a world that
moves to another machine would come to another state. Here the result is the double next to the exact power (ties to
even), so there is one right answer:

- A whole power of at most 64 is exact in integers, and rounded once.
- A power of two is only shifted.
- A broken exponent of a perfect square is a larger exponent of its root: 9^1.5 is 3^3. These are all the powers that
  can lie in the middle between two doubles.
- All others are e^(y ln x) with 60 digits: they lie in the middle of nothing, and 60 digits say on which side.
"""

from __future__ import annotations

import decimal
import math
from typing import Final

from worldline.flow_core.js_values import Number, normal

_EXACT_MAX: Final = 64  # a power of an odd number above 1 that is as large has more bits than a double and a half
_BITS_MAX: Final = 1_100  # a double has exponents from -1074 to 1024
_DIGITS: Final = decimal.Context(prec=60, Emax=999_999, Emin=-999_999, rounding=decimal.ROUND_HALF_EVEN, traps=[])


def raised(base: Number, exponent: Number) -> Number | None:
    """Return the power; None where it is no finite number."""
    if type(base) is int and type(exponent) is int and 0 <= exponent <= _EXACT_MAX:
        return _finite(normal(base**exponent))
    if exponent == 0:
        return 1
    if math.isnan(base) or math.isnan(exponent):
        return None
    if math.isinf(base) or math.isinf(exponent):
        return _limit(base, exponent)
    if base == 0:
        return 0 if exponent > 0 else None
    whole = type(exponent) is int or float(exponent).is_integer()
    # A root of a negative number is not a real one.
    if base < 0 and not whole:
        return None
    found = _magnitude(abs(base), exponent)
    return _finite(normal(-found if base < 0 and exponent % 2 else found))


def _finite(number: Number) -> Number | None:
    return number if math.isfinite(number) else None


def _limit(base: Number, exponent: Number) -> Number | None:
    """One of both is infinite: the power is 0, or no finite number."""
    if math.isinf(exponent):
        grows = abs(base) > 1 if exponent > 0 else abs(base) < 1
        return None if grows or abs(base) == 1 else 0
    return None if exponent > 0 else 0


def _magnitude(base: Number, exponent: Number) -> float:
    """Return the power of a number above 0; infinite if it is too large."""
    top, bottom = base.as_integer_ratio()
    number, parts = exponent.as_integer_ratio()
    if top == bottom:
        return 1.0
    bits = (top.bit_length() - bottom.bit_length()) * number // parts
    if abs(bits) > _BITS_MAX + abs(number) // parts:  # far out of range, whatever the bits below the first are
        return math.inf if bits > 0 else 0.0
    while parts > 1 and (roots := _roots(top, bottom)) is not None:
        (top, bottom), parts = roots, parts // 2
    # Of powers of two only the exponent changes.
    if parts == 1 and top & (top - 1) == bottom & (bottom - 1) == 0:
        return _shifted((top.bit_length() - bottom.bit_length()) * number)
    if parts == 1 and abs(number) <= _EXACT_MAX:
        return _quotient(top**number, bottom**number) if number > 0 else _quotient(bottom**-number, top**-number)
    digits = _DIGITS
    power = digits.multiply(
        digits.divide(decimal.Decimal(number), decimal.Decimal(parts)), digits.ln(_ratio(top, bottom))
    )
    return float(digits.exp(power))


def _shifted(bits: int) -> float:
    """A power of two."""
    try:
        return math.ldexp(1.0, bits)
    except OverflowError:
        return math.inf


def _roots(top: int, bottom: int) -> tuple[int, int] | None:
    """Return the square roots of both, if they are whole."""
    first, second = math.isqrt(top), math.isqrt(bottom)
    return (first, second) if first * first == top and second * second == bottom else None


def _quotient(top: int, bottom: int) -> float:
    """Rounded once: a quotient of integers is."""
    try:
        return top / bottom
    except OverflowError:
        return math.inf


def _ratio(top: int, bottom: int) -> decimal.Decimal:
    return _DIGITS.divide(decimal.Decimal(top), decimal.Decimal(bottom))
