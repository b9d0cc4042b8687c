"""Logic, comparison and arithmetic, as closures.

Numbers are doubles: an int that grows beyond 2^53-1 is rounded as a double would be. Division by zero, the root of a
negative number and a power that is no finite number are null.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from worldline.flow_core import js_values
from worldline.flow_core.expressions import powers
from worldline.flow_core.expressions.scope import EvalScope, Run
from worldline.flow_core.js_values import INTEGER_MAX, Number, normal, num, strict_equal, truth

_FLOOR: Final = -INTEGER_MAX
_NAN: Final = float("nan")


def eq(left: Run, right: Run) -> Run:
    return lambda scope: strict_equal(left(scope), right(scope))


def neq(left: Run, right: Run) -> Run:
    return lambda scope: not strict_equal(left(scope), right(scope))


def gt(left: Run, right: Run) -> Run:
    return lambda scope: num(left(scope)) > num(right(scope))


def gte(left: Run, right: Run) -> Run:
    return lambda scope: num(left(scope)) >= num(right(scope))


def lt(left: Run, right: Run) -> Run:
    return lambda scope: num(left(scope)) < num(right(scope))


def lte(left: Run, right: Run) -> Run:
    return lambda scope: num(left(scope)) <= num(right(scope))


def all_of(args: list[Run]) -> Run:
    def run(scope: EvalScope) -> bool:
        for each in args:
            found = each(scope)
            # Most conditions give True itself, which saves a call.
            if found is not True and not truth(found):
                return False
        return True

    return run


def any_of(args: list[Run]) -> Run:
    def run(scope: EvalScope) -> bool:
        for each in args:
            found = each(scope)
            if found is True or truth(found):
                return True
        return False

    return run


def negated(arg: Run) -> Run:
    return lambda scope: not truth(arg(scope))


def chosen(cond: Run, then: Run, otherwise: Run) -> Run:
    def run(scope: EvalScope) -> Any:
        found = cond(scope)
        return then(scope) if found is True or truth(found) else otherwise(scope)

    return run


def add(left: Run, right: Run) -> Run:
    def run(scope: EvalScope) -> Number:
        a, b = left(scope), right(scope)
        if type(a) is int and type(b) is int:
            found = a + b
            # Beyond 2^53-1 the sum is rounded as that of doubles is.
            if _FLOOR <= found <= INTEGER_MAX:
                return found
        return normal(num(a) + num(b))

    return run


def sub(left: Run, right: Run) -> Run:
    def run(scope: EvalScope) -> Number:
        a, b = left(scope), right(scope)
        if type(a) is int and type(b) is int:
            found = a - b
            if _FLOOR <= found <= INTEGER_MAX:
                return found
        return normal(num(a) - num(b))

    return run


def mul(left: Run, right: Run) -> Run:
    def run(scope: EvalScope) -> Number:
        a, b = left(scope), right(scope)
        if type(a) is int and type(b) is int:
            found = a * b
            if _FLOOR <= found <= INTEGER_MAX:
                return found
        return normal(num(a) * num(b))

    return run


def div(left: Run, right: Run) -> Run:
    def run(scope: EvalScope) -> Number | None:
        a, b = num(left(scope)), num(right(scope))
        # Python would raise, and JavaScript's infinity is no value of a snapshot.
        return None if b == 0 else normal(a / b)

    return run


def mod(left: Run, right: Run) -> Run:
    def run(scope: EvalScope) -> Number | None:
        return _remainder(num(left(scope)), num(right(scope)))

    return run


def _remainder(a: Number, b: Number) -> Number | None:
    """With the sign of the dividend."""
    if b == 0:
        return None
    if type(a) is int and type(b) is int:
        # Python's own `%` has the sign of the divisor.
        return abs(a) % abs(b) if a >= 0 else -(abs(a) % abs(b))
    try:
        return normal(math.fmod(a, b))
    except ValueError:  # an infinite dividend
        return _NAN


def least(args: list[Run]) -> Run:
    return lambda scope: minimum([num(each(scope)) for each in args])


def greatest(args: list[Run]) -> Run:
    return lambda scope: maximum([num(each(scope)) for each in args])


def minimum(numbers: list[Number]) -> Number | None:
    return _extreme(numbers, min)


def maximum(numbers: list[Number]) -> Number | None:
    return _extreme(numbers, max)


def _extreme(numbers: list[Number], pick: Callable[[list[Number]], Number]) -> Number | None:
    if not numbers:
        return None
    # Python's `min` and `max` depend on the order where NaN is among the numbers.
    return _NAN if any(each != each for each in numbers) else pick(numbers)  # noqa: PLR0124


def absolute(arg: Run) -> Run:
    return lambda scope: abs(num(arg(scope)))


def neg(arg: Run) -> Run:
    return lambda scope: normal(-num(arg(scope)))


def floor(arg: Run) -> Run:
    return lambda scope: _whole(num(arg(scope)), math.floor)


def ceil(arg: Run) -> Run:
    return lambda scope: _whole(num(arg(scope)), math.ceil)


def rounded(arg: Run) -> Run:
    return lambda scope: _whole(num(arg(scope)), _half_up)


def _whole(number: Number, how: Callable[[Number], int]) -> Number:
    if type(number) is int or not math.isfinite(number):
        return number
    return normal(how(number))


def _half_up(number: Number) -> int:
    below = math.floor(number)
    # Python's `round` would take the even number in the middle.
    return below + 1 if number - below >= 0.5 else below


def sqrt(arg: Run) -> Run:
    def run(scope: EvalScope) -> Number | None:
        found = num(arg(scope))
        return None if found < 0 else normal(math.sqrt(found))

    return run


def power(base: Run, exponent: Run) -> Run:
    return lambda scope: powers.raised(num(base(scope)), num(exponent(scope)))


def sum_array(array: Run) -> Run:
    def run(scope: EvalScope) -> Number:
        found = array(scope)
        if type(found) is not list:
            return 0
        scope.meter.spend(len(found))
        total: Number = 0
        for each in found:
            # Rounded at every step, as a sum of doubles is.
            total = normal(total + num(each))
        return total

    return run


def min_array(array: Run) -> Run:
    return lambda scope: minimum(_numbers(array(scope), scope))


def max_array(array: Run) -> Run:
    return lambda scope: maximum(_numbers(array(scope), scope))


def _numbers(elements: object, scope: EvalScope) -> list[Number]:
    if type(elements) is not list:
        return []
    scope.meter.spend(len(elements))
    return [num(each) for each in elements]


def is_null(arg: Run) -> Run:
    def run(scope: EvalScope) -> bool:
        found = arg(scope)
        return found is None or found is js_values.MISSING

    return run


def coalesce(args: list[Run]) -> Run:
    def run(scope: EvalScope) -> Any:
        for each in args:
            found = each(scope)
            if found is not None and found is not js_values.MISSING:
                return found
        return None

    return run


def kind_of(arg: Run) -> Run:
    return lambda scope: js_values.kind_of(arg(scope))


def to_number(arg: Run) -> Run:
    return lambda scope: num(arg(scope))


def to_boolean(arg: Run) -> Run:
    return lambda scope: truth(arg(scope))
