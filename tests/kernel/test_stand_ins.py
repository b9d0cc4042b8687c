"""Types that msgspec does not read by itself: unions of dataclasses by a tag, pydantic's own types, and paths.

As arguments, results, events and cells; in lists, maps and other classes; and what is said of those that do not fit.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest

import worldline as wl
from worldline import testing
from worldline.base import errors
from worldline.kernel import stand_ins, user_values
from worldline.kernel.authoring import stored_types


@dataclass(frozen=True)
class Circle:
    radius: float
    kind: Literal["circle"] = "circle"


@dataclass
class Square:
    side: float
    files: list[Path] = field(default_factory=list)
    kind: Literal["square", "box"] = "square"


@dataclass
class Group:
    """It has itself in it."""

    shapes: list[Circle | Square | Group | None]
    named: dict[str, Circle | Square] = field(default_factory=dict)
    kind: Literal["group"] = "group"


class Card(pydantic.BaseModel):
    url: pydantic.HttpUrl
    folder: Path
    method: Literal["card"] = "card"


class Cash(msgspec.Struct):
    amount: int
    method: Literal["cash"] = "cash"


@dataclass
class Drawn:
    shape: Circle | Square | Group | str
    paid: Card | Cash | None = None
    limit: pydantic.ByteSize | None = None
    seen: pydantic.AwareDatetime | None = None


Shape = Circle | Square | Group
CARD = Card(url=pydantic.HttpUrl("https://example.com/a"), folder=Path("/tmp/x"))
STORED: dict[str, tuple[Any, Any]] = {
    "union": (Circle | Square, Square(2.0, [Path("a/b")])),
    "the other word": (Circle | Square, Square(2.0, kind="box")),
    "or none": (Circle | Square | None, None),
    "or text": (Circle | Square | str, "none of them"),
    "in a list": (list[Circle | Square], [Circle(1.0), Square(2.0)]),
    "in a map": (dict[str, tuple[Circle | Square, int]], {"a": (Circle(1.0), 5)}),
    "annotated": (Annotated[Circle | Square, "which"], Circle(1.0)),
    "itself": (Shape, Group([Circle(1.0), None, Group([Square(3.0)])], {"a": Circle(4.0)})),
    "a class with one": (Drawn, Drawn(Group([Circle(1.0)]), paid=CARD, limit=pydantic.ByteSize(5))),
    "a class without one": (Drawn, Drawn("sketch", paid=Cash(5), seen=datetime(2024, 1, 1, tzinfo=UTC))),
    "models": (Annotated[Card | Cash, pydantic.Field(discriminator="method")], CARD),
    "model": (Card, CARD),
    "url": (pydantic.HttpUrl, pydantic.HttpUrl("https://example.com/a?b=c")),
    "dsn": (list[pydantic.PostgresDsn], [pydantic.PostgresDsn("postgresql://ada@db/x")]),
    "size": (pydantic.ByteSize, pydantic.ByteSize(1_000)),
    "time": (pydantic.AwareDatetime, datetime(2024, 1, 1, tzinfo=UTC)),
    "a number with bounds": (pydantic.PositiveInt, 5),
    "path": (Path, Path("/etc/../a b")),
    "pure path": (PurePosixPath | None, PurePosixPath("a")),
    "paths": (dict[str, list[Path]], {"a": [Path(), Path("/")]}),
}


@pytest.mark.parametrize("name", STORED)
def test_values_come_back(name: str) -> None:
    kind, value = STORED[name]
    stored_types.check(kind, "it")
    data = user_values.dump(value)
    found = user_values.load(kind, data)
    assert found == value
    assert type(found) is type(value)
    assert user_values.dump(found) == data


app = wl.Program("shapes")


@app.effect
def area(shape: Circle | Square, file: Path, url: pydantic.HttpUrl) -> Circle | Square:
    return Square(len(file.parts) + len(str(url)), kind="box") if shape.kind == "circle" else shape


@app.workflow
async def draws(shape: Circle | Square, file: Path) -> tuple[Circle | Square, Path, pydantic.HttpUrl]:
    url = pydantic.HttpUrl("https://example.com")
    await wl.sleep(60)
    return await area(shape, file, url), file / "b", url


@app.reducer
@dataclass
class Board:
    last: Circle | Square | None = None
    all: list[Drawn] = field(default_factory=list)

    @wl.on
    def drawn(self, event: Drawn) -> None:
        self.last = event.shape if isinstance(event.shape, Circle | Square) else None
        self.all.append(event)


async def test_as_arguments_results_events_and_cells() -> None:
    expected = (Square(21.0, kind="box"), Path("a/b"), pydantic.HttpUrl("https://example.com"))
    async with wl.open("memory://", host=app) as universe:
        world = await universe.ensure("w", app)
        await (await world.send(Drawn(Circle(1.0), paid=CARD))).applied(20)
        assert await world.state(Board) == Board(Circle(1.0), [Drawn(Circle(1.0), paid=CARD)])
    with testing.world(app, wl.Script().on(area, area)) as kit:
        assert kit.run(draws(Circle(1.0), Path("a"))) == expected
        kit.send(Drawn("sketch", paid=Cash(5)))
        kit.send(Drawn(Square(2.0)))
        assert kit.state(Board).last == Square(2.0)
        assert kit.prove() > 0


UNFIT: dict[str, tuple[Any, Any, str]] = {
    "no such word": (
        Circle | Square,
        {"radius": 1.0, "kind": "line"},
        "whose field 'kind' is one of 'circle', .*'line'",
    ),
    "no word": (list[Circle | Square], [{"radius": 1.0}], r"one of 'circle', 'square', 'box', got None - at `\$\[0\]`"),
    "not one of them": (Circle | Square, 5, "got `int`"),
    "its field": (Drawn, {"shape": {"radius": "x", "kind": "circle"}}, r"got `str` - at `\$.radius` - at `\$.shape`"),
    "no field": (Drawn, {"paid": None}, "missing required field `shape`"),
    "url": (list[pydantic.HttpUrl], ["nowhere"], r"HttpUrl.: Input should be a valid URL, .* - at `\$\[0\]`$"),
    "path": (Path, 5, "Expected `str`, got `int`"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_does_not_fit_is_told(name: str) -> None:
    kind, data, said = UNFIT[name]
    with pytest.raises(errors.DecodeError, match=said):
        user_values.load(kind, user_values.dump(data))


@dataclass
class Line:
    length: float


@dataclass
class Point:
    x: float
    kind: Literal["circle"] = "circle"


@dataclass
class Made:
    shape: Circle | Square
    late: InitVar[int] = 0


@dataclass
class Counted:
    shape: Circle | Square
    count: int = field(default=0, init=False)


@dataclass
class Locked:
    kind: Literal["locked"]
    lock: set[Line]


REFUSED: dict[str, tuple[Any, str]] = {
    "no tag": (
        Circle | Line,
        r"more than one dataclass .*; use one type besides None, classes that a field tells apart",
    ),
    "one tag": (Circle | Point, "classes that a field tells apart"),
    "not made of fields": (Made, "dataclasses with `InitVar` fields are not supported"),
    "made by itself": (Counted, "classes that a field tells apart"),
    "inside": (Circle | Locked, "field 'lock': a set of Line cannot be stored"),
    "secret": (pydantic.SecretStr, r"SecretStr cannot be stored: it has no stored form; .*wl.secret\(\)"),
    "day": (list[pydantic.FutureDate], "FutureDate cannot be stored: whether it fits depends on when it is read"),
    "json": (pydantic.Json, "Json cannot be stored: what it holds is not the text"),
    "address": (pydantic.IPvAnyAddress | None, "IPvAnyAddress cannot be stored: .*; use str"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_stored_is_refused(name: str) -> None:
    kind, said = REFUSED[name]
    with pytest.raises(wl.BadInput, match=f"^it.*{said}"):
        stored_types.check(kind, "it")


def test_a_secret_of_pydantic_is_not_written() -> None:
    with pytest.raises(errors.EncodeError, match="field password: SecretStr: it has no stored form"):
        user_values.dump({"password": pydantic.SecretStr("x")})


def test_other_types_stay_what_they_are() -> None:
    for kind in (int, Circle, list[Circle], Circle | None, dict[str, Line], Annotated[int, "x"], Card):
        assert stand_ins.read_as(kind) is kind
