"""Values as JavaScript has them: numbers are doubles, text is UTF-16, and missing is not null.

Invariant: a number inside Core is an int if it is integral and at most 2^53-1, else a float; so equal numbers have
equal bytes, and -0 is 0. Containers are plain dicts and lists that are never changed in place: a write copies the way
to it. `True` is no number here, though Python says so: types are compared with `is`.

`checked` is the boundary: what enters a snapshot is copied, so two places never share a container and identity (`eq`
on containers) means "the same place"; NaN, infinities, halves of a character, bytes and `__proto__` are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from worldline.base import limits
from worldline.flow_core import faults

MISSING: Final = msgspec.UNSET  # JavaScript's undefined; left out where a struct is encoded
INTEGER_MAX: Final = 2**53 - 1
SPACES: Final = "\t\n\v\f\r \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"  # noqa: E501
FORBIDDEN_KEY: Final = "__proto__"

_FLOAT = re.compile(r"[+-]?(?:Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")
_CONTAINERS: Final = (dict, list)

Number = int | float


class EvaluationMeter:
    """How much one call of Core has evaluated, in nodes and items."""

    __slots__ = ("work",)

    def __init__(self) -> None:
        self.work = 0

    def can_spend(self, amount: int) -> bool:
        return self.work + amount <= limits.FLOW_WORK_MAX

    def spend(self, amount: int) -> None:
        self.work += amount
        if self.work > limits.FLOW_WORK_MAX:
            raise faults.Fault(
                faults.LIMIT_EXCEEDED, f"more than {limits.FLOW_WORK_MAX} nodes and items evaluated in one call"
            )


# --- Numbers ---------------------------------------------------------------------------------------------------------


def normal(value: Number) -> Number:
    """A number in its one form."""
    if isinstance(value, int):
        return value if -INTEGER_MAX <= value <= INTEGER_MAX else _as_float(value)
    # -0.0 is a whole number, too, and becomes 0 here.
    if value.is_integer() and -INTEGER_MAX <= value <= INTEGER_MAX:
        return int(value)
    return value


def _as_float(value: int) -> float:
    try:
        found = float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    return found


def num(value: object) -> Number:
    """Return the number that arithmetic takes a value for; what is none counts as 0."""
    # Exact types: True is an `int` to Python.
    kind = type(value)
    if kind is int or kind is float:
        return value  # type: ignore[return-value]
    if kind is str:
        return parse_float(value)  # type: ignore[arg-type]
    return 1 if value is True else 0


def parse_float(text: str) -> Number:
    """Return the number a text begins with, 0 if none."""
    found = _FLOAT.match(text.lstrip(SPACES))
    if found is None:
        return 0
    return normal(float(found[0].replace("Infinity", "inf")))


def number_text(value: Number) -> str:
    """A number as JavaScript writes it."""
    if type(value) is int:
        return str(value)
    if value != value:  # noqa: PLR0124
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "0"
    # `repr` has the shortest digits that read back the same, as JavaScript's text: only the layout differs.
    mantissa, _, power = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(power or 0) - (len(whole + fraction) - len(digits))
    return ("-" if value < 0 else "") + _decimal(digits.rstrip("0"), point)


def _decimal(digits: str, point: int) -> str:
    """The digits with a decimal point behind the first `point` of them, or as a power of ten if that is far away."""
    if len(digits) <= point <= 21:
        return digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return "0." + "0" * -point + digits
    power = f"{'+' if point > 0 else '-'}{abs(point - 1)}"
    return f"{digits[0]}.{digits[1:]}e{power}" if len(digits) > 1 else f"{digits}e{power}"


# --- Truth, text, equality -------------------------------------------------------------------------------------------


def truth(value: object) -> bool:
    """Return whether conditions of expressions hold. The condition of an `if` *node* is `is_set`."""
    if value is True or value is False:
        return value
    if value is None or value is MISSING:
        return False
    kind = type(value)
    if kind is int or kind is float:
        return value != 0
    if kind is str:
        return value != ""
    return True


def is_set(value: object) -> bool:
    """Return whether an `if` node takes `then`: 0 and "" do."""
    return value is not None and value is not False and value is not MISSING


def text(value: object) -> str:
    """A value as JavaScript's String() has it; null and missing are empty."""
    kind = type(value)
    if kind is str:
        return value  # type: ignore[return-value]
    if kind is int or kind is float:
        return number_text(value)  # type: ignore[arg-type]
    if value is None or value is MISSING:
        return ""
    if kind is bool:
        return "true" if value else "false"
    if kind is list:
        return fused(",".join(_parts(value, EvaluationMeter())))  # type: ignore[arg-type]
    return "[object Object]"


def _parts(array: list[object], meter: EvaluationMeter) -> list[str]:
    """Return the texts of the elements. Counted, because an array may have one other many times in it."""
    # The text of nested arrays can be far longer than the arrays take.
    meter.spend(len(array))
    return [",".join(_parts(each, meter)) if type(each) is list else text(each) for each in array]


def strict_equal(left: object, right: object) -> bool:
    """JavaScript's ===: no conversion, and containers only if they are the same one."""
    kind, other = type(left), type(right)
    if kind is other:
        # Core never shares containers, so the same one means the same place.
        return left is right if kind in _CONTAINERS else left == right
    return (kind is int or kind is float) and (other is int or other is float) and left == right


def same_value(left: object, right: object) -> bool:
    """As strict equality, and NaN is NaN."""
    return strict_equal(left, right) or (left != left and right != right)  # noqa: PLR0124


def kind_of(value: object) -> str:
    """JavaScript's typeof, with "null" and "array" told from objects."""
    if value is None:
        return "null"
    if value is MISSING:
        return "undefined"
    return _KINDS[type(value)]


_KINDS: Final[dict[type, str]] = {
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


# --- UTF-16 ----------------------------------------------------------------------------------------------------------


def units(value: str) -> str:
    """A text with one character for each UTF-16 unit: what lies outside the basic plane becomes two halves."""
    # In the basic plane, as most texts are, each character is one unit.
    if value.isascii() or max(value) < "\U00010000":
        return value
    return "".join(each if each < "\U00010000" else _halves(ord(each) - 0x10000) for each in value)


def _halves(above: int) -> str:
    return chr(0xD800 + (above >> 10)) + chr(0xDC00 + (above & 0x3FF))


def fused(value: str) -> str:
    """A text whose pairs of halves are characters again."""
    if value.isascii() or is_whole(value):
        return value
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def is_whole(value: str) -> bool:
    """Return whether a text has no half of a character."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def bounded(value: str) -> str:
    """A text that an expression made, refused if it is too long."""
    short_enough(len(value))
    return value


def short_enough(length: int) -> None:
    """Refuse a text so long, if need be before it is made."""
    if length > limits.FLOW_TEXT_LENGTH_MAX:
        raise faults.Fault(
            faults.LIMIT_EXCEEDED, f"a text of {length} characters; the limit is {limits.FLOW_TEXT_LENGTH_MAX}"
        )


# --- The boundary ----------------------------------------------------------------------------------------------------


def checked(value: object, meter: EvaluationMeter, where: str = "") -> Any:
    """A copy that a snapshot can keep: JSON, with numbers in their one form. `where` is said if it is not."""
    return value if _is_plain(value, type(value)) else _copied(value, meter, meter.work, where, 0)


def _is_plain(value: Any, kind: type) -> bool:
    """Return whether a value is kept as it is, as most are: no container, and in its one form."""
    if kind is str:
        return value.isascii() and len(value) <= limits.FLOW_TEXT_LENGTH_MAX
    if kind is int:
        return bool(-INTEGER_MAX <= value <= INTEGER_MAX)
    return value is None or kind is bool


def _copied(value: object, meter: EvaluationMeter, begun: int, where: str, depth: int) -> Any:
    kind = type(value)
    if kind is str:
        found: str = value  # type: ignore[assignment]
        if not found.isascii() and not is_whole(found):
            raise _unfit(where, "has half of a character (a lone surrogate)")
        return bounded(found)
    if value is None or kind is bool:
        return value
    if kind is int or kind is float:
        number = normal(value)  # type: ignore[arg-type]
        # JSON has none of these, so a snapshot that was stored would differ.
        if type(number) is float and not math.isfinite(number):
            raise _unfit(where, f"is {number_text(number)}, which JSON does not have")
        return number
    if depth >= limits.FLOW_DEPTH_MAX:
        raise faults.Fault(faults.LIMIT_EXCEEDED, f"{where or 'a value'} is nested deeper than {limits.FLOW_DEPTH_MAX}")
    if kind in (dict, list, tuple, MappingProxyType):
        meter.spend(len(value))  # type: ignore[arg-type]
        # From where this value began: the meter has the work of the whole call.
        if meter.work - begun > limits.FLOW_VALUE_ITEMS_MAX:
            raise faults.Fault(
                faults.LIMIT_EXCEEDED, f"{where or 'a value'} has more than {limits.FLOW_VALUE_ITEMS_MAX} items"
            )
    # Missing is null in an array, where each place counts; an object leaves it out.
    if kind is list or kind is tuple:
        return [
            each
            if _is_plain(each, type(each))
            else None
            if each is MISSING
            else _copied(each, meter, begun, where, depth + 1)
            for each in value  # type: ignore[attr-defined]
        ]
    if kind is dict or kind is MappingProxyType:
        return {
            _key(name, where): each
            if _is_plain(each, type(each))
            else _copied(each, meter, begun, f"{where}.{name}" if where else str(name), depth + 1)
            for name, each in value.items()  # type: ignore[attr-defined]
            if each is not MISSING
        }
    raise _unfit(where, f"is {_named(value)}, not JSON")


def _key(name: object, where: str) -> str:
    if type(name) is not str or name == FORBIDDEN_KEY or not (name.isascii() or is_whole(name)):
        raise _unfit(where, f"has the key {name!r}, which no object may have")
    return name


def _unfit(where: str, what: str) -> faults.Fault:
    return faults.Fault(faults.INVALID_VALUE, f"{where or 'the value'} {what}")


def _named(value: object) -> str:
    return "missing" if value is MISSING else f"of type {type(value).__name__}"


def from_outside(value: object, where: str) -> Any:
    """What a caller gives, checked and copied. Raises `faults.NotJson`."""
    if _is_plain(value, type(value)):
        return value
    try:
        return _copied(value, EvaluationMeter(), 0, where, 0)
    except faults.Fault as refused:
        raise faults.NotJson(str(refused)) from None


def duplicate(value: Any) -> Any:
    """A deep copy of what Core made: a caller that changes it changes no snapshot."""
    if type(value) is dict:
        return {name: duplicate(each) for name, each in value.items()}
    if type(value) is list:
        return [duplicate(each) for each in value]
    return value


def frozen(value: Any) -> Any:
    """A deep copy that refuses every change: what handlers of effects are given."""
    if isinstance(value, Mapping):
        return MappingProxyType({name: frozen(each) for name, each in value.items()})
    if isinstance(value, list | tuple):
        return tuple(frozen(each) for each in value)
    return value
