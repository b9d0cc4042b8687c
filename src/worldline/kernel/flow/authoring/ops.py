"""`flow.x`: the 72 kinds of expressions as typed functions. To a type checker they work on values; they make terms.

Names are those of the kinds in snake case; one that Python has already ends in an underscore (`and_`, `map_`, `len_`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from worldline.kernel.flow.authoring import terms

T = TypeVar("T")
U = TypeVar("U")
N = TypeVar("N", int, float)


def _is(kind: str, **arguments: Any) -> Any:
    return terms.term(kind, **arguments)


def lit(value: T) -> T:
    return _is("lit", value=terms.lifted(value).doc["value"])  # type: ignore[no-any-return]


def get(path: str) -> Any:
    """What is at a path: a field, `computed.x`, `input.x`, `meta.timestamp`, `$item`."""
    return _is("get", path=path)


def eq(left: object, right: object) -> bool:
    return _is("eq", left=left, right=right)  # type: ignore[no-any-return]


def neq(left: object, right: object) -> bool:
    return _is("neq", left=left, right=right)  # type: ignore[no-any-return]


def gt(left: float, right: float) -> bool:
    return _is("gt", left=left, right=right)  # type: ignore[no-any-return]


def gte(left: float, right: float) -> bool:
    return _is("gte", left=left, right=right)  # type: ignore[no-any-return]


def lt(left: float, right: float) -> bool:
    return _is("lt", left=left, right=right)  # type: ignore[no-any-return]


def lte(left: float, right: float) -> bool:
    return _is("lte", left=left, right=right)  # type: ignore[no-any-return]


def and_(*args: object) -> bool:
    return _is("and", args=args)  # type: ignore[no-any-return]


def or_(*args: object) -> bool:
    return _is("or", args=args)  # type: ignore[no-any-return]


def not_(arg: object) -> bool:
    return _is("not", arg=arg)  # type: ignore[no-any-return]


def if_(cond: object, then: T, otherwise: U) -> T | U:
    return _is("if", cond=cond, then=then, **{"else": otherwise})  # type: ignore[no-any-return]


def add(left: N, right: N) -> N:
    return _is("add", left=left, right=right)  # type: ignore[no-any-return]


def sub(left: N, right: N) -> N:
    return _is("sub", left=left, right=right)  # type: ignore[no-any-return]


def mul(left: N, right: N) -> N:
    return _is("mul", left=left, right=right)  # type: ignore[no-any-return]


def div(left: float, right: float) -> float | None:
    return _is("div", left=left, right=right)  # type: ignore[no-any-return]


def mod(left: N, right: N) -> N | None:
    return _is("mod", left=left, right=right)  # type: ignore[no-any-return]


def min_(*args: N) -> N | None:
    return _is("min", args=args)  # type: ignore[no-any-return]


def max_(*args: N) -> N | None:
    return _is("max", args=args)  # type: ignore[no-any-return]


def abs_(arg: N) -> N:
    return _is("abs", arg=arg)  # type: ignore[no-any-return]


def neg(arg: N) -> N:
    return _is("neg", arg=arg)  # type: ignore[no-any-return]


def floor(arg: float) -> int:
    return _is("floor", arg=arg)  # type: ignore[no-any-return]


def ceil(arg: float) -> int:
    return _is("ceil", arg=arg)  # type: ignore[no-any-return]


def round_(arg: float) -> int:
    return _is("round", arg=arg)  # type: ignore[no-any-return]


def sqrt(arg: float) -> float | None:
    return _is("sqrt", arg=arg)  # type: ignore[no-any-return]


def pow_(base: float, exponent: float) -> float | None:
    return _is("pow", base=base, exponent=exponent)  # type: ignore[no-any-return]


def sum_array(array: Sequence[N]) -> N:
    return _is("sumArray", array=array)  # type: ignore[no-any-return]


def min_array(array: Sequence[N]) -> N | None:
    return _is("minArray", array=array)  # type: ignore[no-any-return]


def max_array(array: Sequence[N]) -> N | None:
    return _is("maxArray", array=array)  # type: ignore[no-any-return]


def concat(*args: object) -> str:
    """Texts joined; for arrays use `concat_arrays`."""
    return _is("concat", args=args)  # type: ignore[no-any-return]


def concat_arrays(*args: Sequence[T]) -> list[T]:
    return _is("concat", args=args)  # type: ignore[no-any-return]


def substring(str: str, start: int, end: int | None = None) -> str:
    more = {} if end is None else {"end": end}
    return _is("substring", str=str, start=start, **more)  # type: ignore[no-any-return]


def trim(str: str) -> str:
    return _is("trim", str=str)  # type: ignore[no-any-return]


def to_lower_case(str: str) -> str:
    return _is("toLowerCase", str=str)  # type: ignore[no-any-return]


def to_upper_case(str: str) -> str:
    return _is("toUpperCase", str=str)  # type: ignore[no-any-return]


def str_len(str: str) -> int:
    return _is("strLen", str=str)  # type: ignore[no-any-return]


def starts_with(str: str, prefix: str) -> bool:
    return _is("startsWith", str=str, prefix=prefix)  # type: ignore[no-any-return]


def ends_with(str: str, suffix: str) -> bool:
    return _is("endsWith", str=str, suffix=suffix)  # type: ignore[no-any-return]


def str_includes(str: str, search: str) -> bool:
    return _is("strIncludes", str=str, search=search)  # type: ignore[no-any-return]


def index_of(str: str, search: str) -> int:
    return _is("indexOf", str=str, search=search)  # type: ignore[no-any-return]


def replace(str: str, search: str, replacement: str) -> str:
    return _is("replace", str=str, search=search, replacement=replacement)  # type: ignore[no-any-return]


def split(str: str, delimiter: str) -> list[str]:
    return _is("split", str=str, delimiter=delimiter)  # type: ignore[no-any-return]


def len_(arg: object) -> int:
    return _is("len", arg=arg)  # type: ignore[no-any-return]


def at(array: Sequence[T], index: int) -> T | None:
    return _is("at", array=array, index=index)  # type: ignore[no-any-return]


def first(array: Sequence[T]) -> T | None:
    return _is("first", array=array)  # type: ignore[no-any-return]


def last(array: Sequence[T]) -> T | None:
    return _is("last", array=array)  # type: ignore[no-any-return]


def slice_(array: Sequence[T], start: int, end: int | None = None) -> list[T]:
    more = {} if end is None else {"end": end}
    return _is("slice", array=array, start=start, **more)  # type: ignore[no-any-return]


def includes(array: Sequence[T], item: T) -> bool:
    return _is("includes", array=array, item=item)  # type: ignore[no-any-return]


def filter_(array: Sequence[T], predicate: Callable[[T], object]) -> list[T]:
    return terms.loop("filter", array, "predicate", predicate)  # type: ignore[return-value]


def map_(array: Sequence[T], mapper: Callable[[T], U]) -> list[U]:
    return terms.loop("map", array, "mapper", mapper)  # type: ignore[return-value]


def find(array: Sequence[T], predicate: Callable[[T], object]) -> T | None:
    return terms.loop("find", array, "predicate", predicate)  # type: ignore[return-value]


def every(array: Sequence[T], predicate: Callable[[T], object]) -> bool:
    return terms.loop("every", array, "predicate", predicate)  # type: ignore[return-value]


def some(array: Sequence[T], predicate: Callable[[T], object]) -> bool:
    return terms.loop("some", array, "predicate", predicate)  # type: ignore[return-value]


def append(array: Sequence[T], *items: T) -> list[T]:
    return _is("append", array=array, items=items)  # type: ignore[no-any-return]


def reverse(array: Sequence[T]) -> list[T]:
    return _is("reverse", array=array)  # type: ignore[no-any-return]


def unique(array: Sequence[T]) -> list[T]:
    return _is("unique", array=array)  # type: ignore[no-any-return]


def flat(array: Sequence[Sequence[T]]) -> list[T]:
    return _is("flat", array=array)  # type: ignore[no-any-return]


def object_(**fields: Any) -> Any:
    return _is("object", fields=fields)


def field(object: Any, property: str) -> Any:
    return _is("field", object=object, property=property)


def keys(obj: object) -> list[str]:
    return _is("keys", obj=obj)  # type: ignore[no-any-return]


def values(obj: Mapping[str, T]) -> list[T]:
    return _is("values", obj=obj)  # type: ignore[no-any-return]


def entries(obj: Mapping[str, T]) -> list[list[Any]]:
    return _is("entries", obj=obj)  # type: ignore[no-any-return]


def merge(*objects: Any) -> Any:
    return _is("merge", objects=objects)


def has_key(obj: object, key: str) -> bool:
    return _is("hasKey", obj=obj, key=key)  # type: ignore[no-any-return]


def pick(obj: Any, keys: Sequence[str]) -> Any:
    return _is("pick", obj=obj, keys=keys)


def omit(obj: Any, keys: Sequence[str]) -> Any:
    return _is("omit", obj=obj, keys=keys)


def from_entries(entries: Sequence[Any]) -> Any:
    return _is("fromEntries", entries=entries)


def typeof(arg: object) -> str:
    return _is("typeof", arg=arg)  # type: ignore[no-any-return]


def is_null(arg: object) -> bool:
    return _is("isNull", arg=arg)  # type: ignore[no-any-return]


def not_null(arg: object) -> bool:
    return not_(is_null(arg))


def coalesce(first: T | None, *others: T | None) -> T:
    return _is("coalesce", args=[first, *others])  # type: ignore[no-any-return]


def to_string(arg: object) -> str:
    return _is("toString", arg=arg)  # type: ignore[no-any-return]


def to_number(arg: object) -> float:
    return _is("toNumber", arg=arg)  # type: ignore[no-any-return]


def to_boolean(arg: object) -> bool:
    return _is("toBoolean", arg=arg)  # type: ignore[no-any-return]


def now() -> int:
    """The time of the snapshot in ms."""
    return _is("get", path="meta.timestamp")  # type: ignore[no-any-return]


def intent_id() -> str:
    return _is("get", path="meta.intentId")  # type: ignore[no-any-return]


def index() -> int:
    """The index of the innermost loop's element."""
    return _is("get", path="$index")  # type: ignore[no-any-return]
