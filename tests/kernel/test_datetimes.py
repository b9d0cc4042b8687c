"""Datetimes: with a time zone they come back equal; without one they are refused, and the field is named."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest

import worldline as wl
from worldline import testing
from worldline.kernel import user_values

NAIVE = datetime(2024, 5, 1, 12)  # noqa: DTZ001 - that is what is refused
AWARE = [
    datetime(2024, 5, 1, 12, 30, 15, 123_456, tzinfo=UTC),
    datetime(2024, 5, 1, 12, tzinfo=timezone(timedelta(hours=-9, minutes=-30))),
    datetime(2024, 5, 1, 12, tzinfo=ZoneInfo("Europe/Lisbon")),
    datetime(1800, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")),  # 53 minutes and 28 seconds from UTC
    datetime(1970, 1, 1, tzinfo=UTC),
]


@dataclasses.dataclass(frozen=True)
class Line:
    due: Any


@dataclasses.dataclass(frozen=True)
class Order:
    name: str
    lines: list[Line]


class Struct(msgspec.Struct):
    due: Any


class Model(pydantic.BaseModel):
    due: Any


class Zone(tzinfo):
    def tzname(self, when: datetime | None) -> str | None:
        return None

    def dst(self, when: datetime | None) -> timedelta | None:
        return None

    def utcoffset(self, when: datetime | None) -> timedelta | None:
        return None


class Odd(Zone):
    def utcoffset(self, when: datetime | None) -> timedelta | None:
        raise SystemExit("no offset")


@pytest.mark.parametrize("when", AWARE, ids=str)
def test_they_come_back_equal(when: datetime) -> None:
    assert user_values.load(datetime, user_values.dump(when)) == when
    assert user_values.load(Order, user_values.dump(Order("a", [Line(when)]))).lines[0].due == user_values.plain(when)
    assert user_values.load(list[datetime], user_values.dump([when, when])) == [when, when]
    assert user_values.load(dict[str, datetime], user_values.dump({"a": when})) == {"a": when}
    assert user_values.load(tuple[datetime, date], user_values.dump((when, date(2024, 5, 1)))) == (
        when,
        date(2024, 5, 1),
    )


def test_as_keys_too() -> None:
    assert user_values.load(dict[datetime, int], user_values.dump({AWARE[0]: 1})) == {AWARE[0]: 1}
    with pytest.raises(wl.BadInput, match=r"dict cannot be stored: field a: the datetime .* has no time zone"):
        user_values.dump({"a": {NAIVE: 1}})


def test_the_text_is_what_it_always_was() -> None:
    assert user_values.plain(AWARE[0]) == "2024-05-01T12:30:15.123456Z"
    assert user_values.plain(AWARE[2]) == "2024-05-01T12:00:00+01:00"
    assert user_values.dump(Line(AWARE[0])) == user_values.dump({"due": "2024-05-01T12:30:15.123456Z"})


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (Order("a", [Line(1), Line(NAIVE)]), r"Order cannot be stored: field lines\[1\]\.due"),
        (Line({"x": [NAIVE]}), r"Line cannot be stored: field due\.x\[0\]"),
        (Struct(NAIVE), r"Struct cannot be stored: field due"),
        (Model(due=NAIVE), r"Model cannot be stored: field due"),
        (Line(datetime(2024, 5, 1, tzinfo=Zone())), "Line cannot be stored: field due"),
        (NAIVE, "datetime cannot be stored"),
        ({NAIVE}, r"set cannot be stored: field \[0\]"),
    ],
)
def test_without_a_zone_they_are_refused(value: Any, where: str) -> None:
    with pytest.raises(wl.BadInput, match=f"{where}: the datetime 2024-05-01T.* has no time zone; give it one"):
        user_values.dump(value)


def test_a_hostile_zone_is_refused_too() -> None:
    with pytest.raises(wl.BadInput, match="Line cannot be stored: no offset"):
        user_values.dump(Line(datetime(2024, 5, 1, tzinfo=Odd())))


@pytest.mark.parametrize(
    "value",
    [[0] * 1_500_000, [AWARE[0], [0] * 1_500_000], [*[0] * 1_500_000, object()], Line([*[0] * 1_500_000, object()])],
    ids=["many", "many and a datetime", "an object at the end", "in a field"],
)
def test_large_values_are_refused_without_trying_each_part(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []
    parts = user_values._parts

    def noted(whole: object) -> Iterator[tuple[str, Any]]:
        for each in parts(whole):
            tried.append(each)
            yield each

    monkeypatch.setattr(user_values, "_parts", noted)
    with pytest.raises(wl.BadInput):
        user_values.dump(value)
    assert len(tried) <= 10_000


app = wl.Program("times")


@app.effect
async def book(when: datetime, note: str = "") -> datetime:
    return when


@app.workflow
async def plan(when: datetime) -> datetime:
    return await book(when + timedelta(days=1))


@app.workflow
async def careless() -> datetime:
    return await book(NAIVE)


@app.workflow
async def answers_without() -> datetime:
    return NAIVE


def test_in_calls() -> None:
    with testing.world(app, wl.Script().on(book, lambda when, note="": when)) as world:
        assert world.run(plan(AWARE[1])) == AWARE[1] + timedelta(days=1)
        with pytest.raises(
            wl.BadInput, match=r"plan\(\): argument when cannot be stored: the datetime .* no time zone"
        ):
            world.run(plan(NAIVE))
        with pytest.raises(wl.RunFailed, match=r"book\(\): argument when cannot be stored"):
            world.run(careless())
        with pytest.raises(wl.RunFailed, match=r"datetime cannot be stored"):
            world.run(answers_without())
        world.prove()
