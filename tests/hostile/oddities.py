"""Behaviours that return strange values: some cannot be stored, some can, some lie about which."""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
import decimal
import enum
import math
import uuid
from collections import OrderedDict, UserDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

import worldline as wl
from tests.hostile.behaviours import Kind, Registry
from tests.hostile.exceptions import Broken, LyingText

plain = Registry()
odd = plain.add(Kind.ODD)
fine = plain.add(Kind.FINE)
any_end = plain.add(Kind.ANY)


class LyingInt(int):
    def __int__(self) -> int:
        raise ValueError("no number")

    __index__ = __int__

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        raise ValueError("no hash")

    def __bool__(self) -> bool:
        raise Broken


class LyingList(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise Broken

    def __len__(self) -> int:
        return 2**40


class LyingDict(dict[str, Any]):
    def items(self) -> Any:
        raise SystemExit(5)

    def __iter__(self) -> Iterator[str]:
        raise Broken


class FailsOnTouch:
    def __getattribute__(self, name: str) -> Any:
        raise Broken


class ExitsOnTouch:
    def __getattribute__(self, name: str) -> Any:
        raise KeyboardInterrupt


class Modelled:
    """Looks like a model of pydantic's."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def model_dump(self, mode: str) -> Any:
        return self._made() if callable(self._made) else self._made


class Truthless:
    def __bool__(self) -> bool:
        raise Broken


class FailsToDie:
    def __del__(self) -> None:
        raise ValueError("not yet")


class Colour(enum.Enum):
    RED = object()


@dataclass
class Looped:
    inner: Any = None


@dataclass
class Raising:
    count: int = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "count":
            raise Broken
        return object.__getattribute__(self, name)


@dataclass
class Defaults:
    values: list[Any] = field(default_factory=list)


class Struct(msgspec.Struct):
    inner: Any = None


def _model_interrupts() -> Any:
    raise KeyboardInterrupt


def _model_breaks() -> Any:
    raise Broken


def _deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@odd
def an_object() -> Any:
    return object()


@odd
def fails_on_touch() -> Any:
    return FailsOnTouch()


@odd
def exits_on_touch() -> Any:
    return ExitsOnTouch()


@odd
def model_breaks() -> Any:
    return Modelled(_model_breaks)


@odd
def model_interrupts() -> Any:
    return Modelled(_model_interrupts)


@odd
def model_of_objects() -> Any:
    return Modelled({"a": object()})


@any_end
def model_of_itself() -> Any:
    made = Modelled(None)
    made._made = made
    return made


@odd
def lying_list() -> Any:
    return [LyingList([1]), object()]


@any_end
def lying_dict() -> Any:
    return LyingDict(a=1)


@any_end
def lying_int() -> Any:
    return LyingInt(7)


@any_end
def lying_text() -> Any:
    return LyingText("seven")


@odd
def surrogates() -> Any:
    return "\ud800"


@odd
def surrogate_keys() -> Any:
    return {"\udfff": 1}


@odd
def not_a_number() -> Any:
    return math.nan


@odd
def infinity() -> Any:
    return [-math.inf]


@odd
def own_list() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


@odd
def own_dict() -> Any:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


@odd
def own_dataclass() -> Any:
    value = Looped()
    value.inner = value
    return value


@odd
def own_struct() -> Any:
    value = Struct()
    value.inner = [value]
    return value


@odd
def deep_list() -> Any:
    return _deep(500)


@odd
def very_deep_list() -> Any:
    return _deep(100_000)


@any_end
def raising_field() -> Any:
    return Raising()


@odd
def odd_keys() -> Any:
    return {(1, 2): 3, frozenset([1]): 4}


@odd
def mixed_keys() -> Any:
    return {None: 1, object(): 2}


@any_end
def number_keys() -> Any:
    return {1: "a", 2.5: "b", None: "c"}


@any_end
def clashing_keys() -> Any:
    return {1: "a", "1": "b"}


@odd
def great_number() -> Any:
    return 2**64


@odd
def very_great_number() -> Any:
    return 10**5_000


@odd
def an_enum_of_objects() -> Any:
    return Colour.RED


@odd
def huge_text() -> Any:
    return "x" * 17_000_000


@fine
def large_text() -> Any:
    return "x" * 200_000


@fine
def many_items() -> Any:
    return list(range(20_000))


@odd
def too_many_items() -> Any:
    return [0] * 1_000_001


@odd
def a_generator() -> Any:
    return (number for number in range(3))


@odd
def a_function() -> Any:
    return lambda: 7


@odd
def a_class() -> Any:
    return Broken


@odd
def an_exception() -> Any:
    return Broken()


@odd
def a_coroutine() -> Any:
    async def never() -> None:
        return None

    made = never()
    made.close()  # so that Python says nothing about it
    return made


@odd
def a_module() -> Any:
    return math


@odd
def a_context() -> Any:
    return contextvars.copy_context()


@odd
def not_implemented() -> Any:
    return NotImplemented


@odd
def a_future() -> Any:
    loop = asyncio.new_event_loop()
    try:
        return asyncio.Future(loop=loop)
    finally:
        loop.close()


@odd
def a_program() -> Any:
    return wl.Program("inner")


@odd
def a_complex_number() -> Any:
    return 1j


@any_end
def a_deque() -> Any:
    return deque([1, 2])


@any_end
def an_ordered_dict() -> Any:
    return OrderedDict(b=1, a=2)


@odd
def a_user_dict() -> Any:
    return UserDict(a=1)


@any_end
def a_set() -> Any:
    return {"a", "b", "c"}


@odd
def a_mixed_set() -> Any:
    return {"a", 1, (2, 3), object()}


@fine
def a_uuid() -> Any:
    return uuid.UUID(int=7)


@any_end
def a_decimal() -> Any:
    return decimal.Decimal("NaN")


@fine
def a_date() -> Any:
    return dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


@any_end
def a_range() -> Any:
    return range(10**9)


@any_end
def a_bytearray() -> Any:
    return bytearray(b"abc")


@any_end
def a_memoryview() -> Any:
    return memoryview(b"abc")


@odd
def truthless() -> Any:
    return Truthless()


@odd
def fails_to_die() -> Any:
    return FailsToDie()


@fine
def nothing() -> Any:
    return None


@fine
def a_number() -> Any:
    return -7


@fine
def defaults() -> Any:
    return Defaults([1, {"a": b"bytes"}])
