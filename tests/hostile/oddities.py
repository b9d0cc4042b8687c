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


plain.table(
    Kind.ODD,
    {
        "an_object": lambda: object(),
        "fails_on_touch": lambda: FailsOnTouch(),
        "exits_on_touch": lambda: ExitsOnTouch(),
        "model_breaks": lambda: Modelled(_model_breaks),
        "model_interrupts": lambda: Modelled(_model_interrupts),
        "model_of_objects": lambda: Modelled({"a": object()}),
        "lying_list": lambda: [LyingList([1]), object()],
        "surrogates": lambda: "\ud800",
        "surrogate_keys": lambda: {"\udfff": 1},
        "not_a_number": lambda: math.nan,
        "infinity": lambda: [-math.inf],
        "deep_list": lambda: _deep(500),
        "very_deep_list": lambda: _deep(30_000),
        "odd_keys": lambda: {(1, 2): 3, frozenset([1]): 4},
        "mixed_keys": lambda: {None: 1, object(): 2},
        "great_number": lambda: 2**64,
        "very_great_number": lambda: 10**5_000,
        "an_enum_of_objects": lambda: Colour.RED,
        "huge_text": lambda: "x" * 17_000_000,
        "too_many_items": lambda: [0] * 1_000_001,
        "a_generator": lambda: (number for number in range(3)),
        "a_function": lambda: lambda: 7,
        "a_class": lambda: Broken,
        "an_exception": lambda: Broken(),
        "a_module": lambda: math,
        "a_context": lambda: contextvars.copy_context(),
        "not_implemented": lambda: NotImplemented,
        "a_program": lambda: wl.Program("inner"),
        "a_complex_number": lambda: 1j,
        "a_user_dict": lambda: UserDict(a=1),
        "a_mixed_set": lambda: {"a", 1, (2, 3), object()},
        "truthless": lambda: Truthless(),
        "fails_to_die": lambda: FailsToDie(),
    },
)


plain.table(
    Kind.ANY,
    {
        "lying_dict": lambda: LyingDict(a=1),
        "lying_int": lambda: LyingInt(7),
        "lying_text": lambda: LyingText("seven"),
        "raising_field": lambda: Raising(),
        "number_keys": lambda: {1: "a", 2.5: "b", None: "c"},
        "clashing_keys": lambda: {1: "a", "1": "b"},
        "a_deque": lambda: deque([1, 2]),
        "an_ordered_dict": lambda: OrderedDict(b=1, a=2),
        "a_set": lambda: {"a", "b", "c"},
        "a_decimal": lambda: decimal.Decimal("NaN"),
        "a_range": lambda: range(10**9),
        "a_bytearray": lambda: bytearray(b"abc"),
        "a_memoryview": lambda: memoryview(b"abc"),
    },
)


plain.table(
    Kind.FINE,
    {
        "large_text": lambda: "x" * 200_000,
        "many_items": lambda: list(range(20_000)),
        "a_uuid": lambda: uuid.UUID(int=7),
        "a_date": lambda: dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
        "nothing": lambda: None,
        "a_number": lambda: -7,
        "defaults": lambda: Defaults([1, {"a": b"bytes"}]),
    },
)


@any_end
def model_of_itself() -> Any:
    made = Modelled(None)
    made._made = made
    return made


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
def a_coroutine() -> Any:
    async def never() -> None:
        return None

    made = never()
    made.close()  # so that Python says nothing about it
    return made


@odd
def a_future() -> Any:
    loop = asyncio.new_event_loop()
    try:
        return asyncio.Future(loop=loop)
    finally:
        loop.close()
