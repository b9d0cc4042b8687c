"""Maps and dataclasses of plain values take a short way into bytes: the same bytes as by the long one."""

from __future__ import annotations

import abc
import enum
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from worldline.base import errors, limits
from worldline.codec import canonical
from worldline.kernel import user_values


class Colour(enum.IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


@dataclass(frozen=True)
class Plain:
    number: int
    name: str = "é"
    data: bytes = b"\x00"
    sure: bool = True


@dataclass
class Shared:
    number: int = 1
    label: ClassVar[str] = "of the class"


@dataclass(slots=True)
class Slotted:
    number: int = 1


@dataclass
class Deep:
    inner: Plain
    many: list[int] = field(default_factory=lambda: [2, 1])


@dataclass
class WithMeta(metaclass=abc.ABCMeta):  # noqa: B024 - its metaclass is what counts
    number: int = 1


def with_attribute(value: Any, name: str, content: object) -> Any:
    setattr(value, name, content)
    return value


VALUES: list[Any] = [
    Plain(-1),
    Shared(),
    with_attribute(Shared(), "label", "of the object"),
    with_attribute(Shared(), "besides", 5),
    Slotted(),
    Deep(Plain(7)),
    WithMeta(),
    {},
    {"b": 1, "aa": "x", "a": b"y", "c": True},
    {"n": None, "f": 1.5},
    {1: "x", 2: "y"},
    {Text("k"): "v"},
    {"colour": Colour.RED},
    {str(number): number for number in range(100)},
]


@pytest.mark.parametrize("value", VALUES, ids=[f"{number}-{type(each).__name__}" for number, each in enumerate(VALUES)])
def test_the_short_way_makes_the_same_bytes(value: Any) -> None:
    assert user_values.dump(value) == canonical.encode(user_values.plain(value))


@pytest.mark.parametrize("value", [{"x": 2**70}, {"\ud800": 1}, Plain(1, "\ud800"), {"x": object()}])
def test_what_cannot_be_stored_is_refused_by_either(value: object) -> None:
    with pytest.raises(errors.EncodeError):
        user_values.dump(value)


def test_a_value_that_is_too_large_is_refused_by_either() -> None:
    with pytest.raises(errors.ValueTooLarge):
        user_values.dump(Plain(1, "x" * limits.USER_VALUE_BYTES_MAX))
