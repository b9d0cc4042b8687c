"""`flow.x`: the 72 kinds of expressions as typed functions. To a type checker they work on values; they make terms.

Names are those of the kinds in snake case; one that Python has already ends in an underscore (`and_`, `map_`, `len_`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from worldline.flow_core.authoring import terms

T = TypeVar("T")
U = TypeVar("U")
N = TypeVar("N", int, float)


def _is(kind: str, **arguments: Any) -> Any:
    return terms.term(kind, **arguments)


def lit(value: T) -> T:
    """A literal value."""
    return _is("lit", value=terms.lifted(value).doc["value"])  # type: ignore[no-any-return]


def get(path: str) -> Any:
    """What is at a path: a field, `computed.x`, `input.x`, `meta.timestamp`, `$item`."""
    return _is("get", path=path)


def eq(left: object, right: object) -> bool:
    """Whether both are equal."""
    return _is("eq", left=left, right=right)  # type: ignore[no-any-return]


def neq(left: object, right: object) -> bool:
    """Whether both differ."""
    return _is("neq", left=left, right=right)  # type: ignore[no-any-return]


def gt(left: float, right: float) -> bool:
    """Whether the left number is greater."""
    return _is("gt", left=left, right=right)  # type: ignore[no-any-return]


def gte(left: float, right: float) -> bool:
    """Whether the left number is greater or equal."""
    return _is("gte", left=left, right=right)  # type: ignore[no-any-return]


def lt(left: float, right: float) -> bool:
    """Whether the left number is less."""
    return _is("lt", left=left, right=right)  # type: ignore[no-any-return]


def lte(left: float, right: float) -> bool:
    """Whether the left number is less or equal."""
    return _is("lte", left=left, right=right)  # type: ignore[no-any-return]


def and_(*args: object) -> bool:
    """Whether all are true; the rest is not evaluated behind the first that is not."""
    return _is("and", args=args)  # type: ignore[no-any-return]


def or_(*args: object) -> bool:
    """Whether any is true; the rest is not evaluated behind the first that is."""
    return _is("or", args=args)  # type: ignore[no-any-return]


def not_(arg: object) -> bool:
    """Whether it is not true."""
    return _is("not", arg=arg)  # type: ignore[no-any-return]


def if_(cond: object, then: T, otherwise: U) -> T | U:
    """One of two values; the other is not evaluated."""
    # `else` is a keyword of Python, so it cannot be written as an argument.
    return _is("if", cond=cond, then=then, **{"else": otherwise})  # type: ignore[no-any-return]


def add(left: N, right: N) -> N:
    """The sum of two numbers."""
    return _is("add", left=left, right=right)  # type: ignore[no-any-return]


def sub(left: N, right: N) -> N:
    """The difference of two numbers."""
    return _is("sub", left=left, right=right)  # type: ignore[no-any-return]


def mul(left: N, right: N) -> N:
    """The product of two numbers."""
    return _is("mul", left=left, right=right)  # type: ignore[no-any-return]


def div(left: float, right: float) -> float | None:
    """The quotient of two numbers; null if there is none."""
    return _is("div", left=left, right=right)  # type: ignore[no-any-return]


def mod(left: N, right: N) -> N | None:
    """The remainder of a division; null if there is none."""
    return _is("mod", left=left, right=right)  # type: ignore[no-any-return]


def min_(*args: N) -> N | None:
    """The least of its arguments; null without any."""
    return _is("min", args=args)  # type: ignore[no-any-return]


def max_(*args: N) -> N | None:
    """The greatest of its arguments; null without any."""
    return _is("max", args=args)  # type: ignore[no-any-return]


def abs_(arg: N) -> N:
    """A number without its sign."""
    return _is("abs", arg=arg)  # type: ignore[no-any-return]


def neg(arg: N) -> N:
    """A number with the other sign."""
    return _is("neg", arg=arg)  # type: ignore[no-any-return]


def floor(arg: float) -> int:
    """The greatest whole number that is not above it."""
    return _is("floor", arg=arg)  # type: ignore[no-any-return]


def ceil(arg: float) -> int:
    """The least whole number that is not below it."""
    return _is("ceil", arg=arg)  # type: ignore[no-any-return]


def round_(arg: float) -> int:
    """The nearest whole number."""
    return _is("round", arg=arg)  # type: ignore[no-any-return]


def sqrt(arg: float) -> float | None:
    """The square root; null if there is none."""
    return _is("sqrt", arg=arg)  # type: ignore[no-any-return]


def pow_(base: float, exponent: float) -> float | None:
    """A power; null if there is none."""
    return _is("pow", base=base, exponent=exponent)  # type: ignore[no-any-return]


def sum_array(array: Sequence[N]) -> N:
    """The sum of the numbers of an array."""
    return _is("sumArray", array=array)  # type: ignore[no-any-return]


def min_array(array: Sequence[N]) -> N | None:
    """The least number of an array; null if it is empty."""
    return _is("minArray", array=array)  # type: ignore[no-any-return]


def max_array(array: Sequence[N]) -> N | None:
    """The greatest number of an array; null if it is empty."""
    return _is("maxArray", array=array)  # type: ignore[no-any-return]


def concat(*args: object) -> str:
    """Texts joined; for arrays use `concat_arrays`."""
    return _is("concat", args=args)  # type: ignore[no-any-return]


def concat_arrays(*args: Sequence[T]) -> list[T]:
    """Arrays joined, in their order."""
    return _is("concat", args=args)  # type: ignore[no-any-return]


def substring(str: str, start: int, end: int | None = None) -> str:
    """The characters from one position up to another, or to the end."""
    # A missing end is the end of the text; null would count as 0.
    more = {} if end is None else {"end": end}
    return _is("substring", str=str, start=start, **more)  # type: ignore[no-any-return]


def trim(str: str) -> str:
    """A text without blanks at its ends."""
    return _is("trim", str=str)  # type: ignore[no-any-return]


def to_lower_case(str: str) -> str:
    """A text in lower case."""
    return _is("toLowerCase", str=str)  # type: ignore[no-any-return]


def to_upper_case(str: str) -> str:
    """A text in upper case."""
    return _is("toUpperCase", str=str)  # type: ignore[no-any-return]


def str_len(str: str) -> int:
    """The length of a text."""
    return _is("strLen", str=str)  # type: ignore[no-any-return]


def starts_with(str: str, prefix: str) -> bool:
    """Whether a text begins with another."""
    return _is("startsWith", str=str, prefix=prefix)  # type: ignore[no-any-return]


def ends_with(str: str, suffix: str) -> bool:
    """Whether a text ends with another."""
    return _is("endsWith", str=str, suffix=suffix)  # type: ignore[no-any-return]


def str_includes(str: str, search: str) -> bool:
    """Whether a text has another in it."""
    return _is("strIncludes", str=str, search=search)  # type: ignore[no-any-return]


def index_of(str: str, search: str) -> int:
    """Where another text begins in a text; -1 if it is not in it."""
    return _is("indexOf", str=str, search=search)  # type: ignore[no-any-return]


def replace(str: str, search: str, replacement: str) -> str:
    """A text with another in the place of a part."""
    return _is("replace", str=str, search=search, replacement=replacement)  # type: ignore[no-any-return]


def split(str: str, delimiter: str) -> list[str]:
    """The parts of a text between delimiters."""
    return _is("split", str=str, delimiter=delimiter)  # type: ignore[no-any-return]


def len_(arg: object) -> int:
    """The length of an array, a text or an object."""
    return _is("len", arg=arg)  # type: ignore[no-any-return]


def at(array: Sequence[T], index: int) -> T | None:
    """The item at an index of an array; null if there is none."""
    return _is("at", array=array, index=index)  # type: ignore[no-any-return]


def first(array: Sequence[T]) -> T | None:
    """The first item; null of an empty array."""
    return _is("first", array=array)  # type: ignore[no-any-return]


def last(array: Sequence[T]) -> T | None:
    """The last item; null of an empty array."""
    return _is("last", array=array)  # type: ignore[no-any-return]


def slice_(array: Sequence[T], start: int, end: int | None = None) -> list[T]:
    """The items from one index up to another, or to the end."""
    # As for `substring`: null would count as 0.
    more = {} if end is None else {"end": end}
    return _is("slice", array=array, start=start, **more)  # type: ignore[no-any-return]


def includes(array: Sequence[T], item: T) -> bool:
    """Whether an array has an item."""
    return _is("includes", array=array, item=item)  # type: ignore[no-any-return]


def filter_(array: Sequence[T], predicate: Callable[[T], object]) -> list[T]:
    """The items for which the predicate is true."""
    return terms.loop("filter", array, "predicate", predicate)  # type: ignore[return-value]


def map_(array: Sequence[T], mapper: Callable[[T], U]) -> list[U]:
    """What the mapper makes of each item."""
    return terms.loop("map", array, "mapper", mapper)  # type: ignore[return-value]


def find(array: Sequence[T], predicate: Callable[[T], object]) -> T | None:
    """The first item for which the predicate is true; null if there is none."""
    return terms.loop("find", array, "predicate", predicate)  # type: ignore[return-value]


def every(array: Sequence[T], predicate: Callable[[T], object]) -> bool:
    """Whether the predicate is true for all items."""
    return terms.loop("every", array, "predicate", predicate)  # type: ignore[return-value]


def some(array: Sequence[T], predicate: Callable[[T], object]) -> bool:
    """Whether the predicate is true for any item."""
    return terms.loop("some", array, "predicate", predicate)  # type: ignore[return-value]


def append(array: Sequence[T], *items: T) -> list[T]:
    """An array with more items at its end."""
    return _is("append", array=array, items=items)  # type: ignore[no-any-return]


def reverse(array: Sequence[T]) -> list[T]:
    """An array backwards."""
    return _is("reverse", array=array)  # type: ignore[no-any-return]


def unique(array: Sequence[T]) -> list[T]:
    """An array with each item once."""
    return _is("unique", array=array)  # type: ignore[no-any-return]


def flat(array: Sequence[Sequence[T]]) -> list[T]:
    """An array of arrays as one."""
    return _is("flat", array=array)  # type: ignore[no-any-return]


def object_(**fields: Any) -> Any:
    """An object of these fields."""
    return _is("object", fields=fields)


def field(object: Any, property: str) -> Any:
    """A property of an object."""
    return _is("field", object=object, property=property)


def keys(obj: object) -> list[str]:
    """The keys of an object."""
    return _is("keys", obj=obj)  # type: ignore[no-any-return]


def values(obj: Mapping[str, T]) -> list[T]:
    """The values of an object."""
    return _is("values", obj=obj)  # type: ignore[no-any-return]


def entries(obj: Mapping[str, T]) -> list[list[Any]]:
    """The keys and values of an object, as pairs."""
    return _is("entries", obj=obj)  # type: ignore[no-any-return]


def merge(*objects: Any) -> Any:
    """The fields of several objects; later ones win."""
    return _is("merge", objects=objects)


def has_key(obj: object, key: str) -> bool:
    """Whether an object has a key."""
    return _is("hasKey", obj=obj, key=key)  # type: ignore[no-any-return]


def pick(obj: Any, keys: Sequence[str]) -> Any:
    """An object with these keys alone."""
    return _is("pick", obj=obj, keys=keys)


def omit(obj: Any, keys: Sequence[str]) -> Any:
    """An object without these keys."""
    return _is("omit", obj=obj, keys=keys)


def from_entries(entries: Sequence[Any]) -> Any:
    """An object of pairs of keys and values."""
    return _is("fromEntries", entries=entries)


def typeof(arg: object) -> str:
    """The name of the type of a value."""
    return _is("typeof", arg=arg)  # type: ignore[no-any-return]


def is_null(arg: object) -> bool:
    """Whether it is null."""
    return _is("isNull", arg=arg)  # type: ignore[no-any-return]


def not_null(arg: object) -> bool:
    """Whether it is not null."""
    return not_(is_null(arg))


def coalesce(first: T | None, *others: T | None) -> T:
    """The first that is not null."""
    return _is("coalesce", args=[first, *others])  # type: ignore[no-any-return]


def to_string(arg: object) -> str:
    """A value as text."""
    return _is("toString", arg=arg)  # type: ignore[no-any-return]


def to_number(arg: object) -> float:
    """A value as a number."""
    return _is("toNumber", arg=arg)  # type: ignore[no-any-return]


def to_boolean(arg: object) -> bool:
    """Whether a value counts as true."""
    return _is("toBoolean", arg=arg)  # type: ignore[no-any-return]


def now() -> int:
    """The time of the snapshot in ms."""
    return _is("get", path="meta.timestamp")  # type: ignore[no-any-return]


def intent_id() -> str:
    """The id of the intent that is on its way."""
    return _is("get", path="meta.intentId")  # type: ignore[no-any-return]


def index() -> int:
    """The index of the innermost loop's element."""
    return _is("get", path="$index")  # type: ignore[no-any-return]
