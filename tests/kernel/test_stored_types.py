"""Which types can be stored is known when they are declared: what is refused then could not be stored or read back."""

from __future__ import annotations

import collections
import dataclasses
import enum
import importlib
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Final, Generic, Literal, LiteralString, NamedTuple, NewType, TypedDict, TypeVar

import msgspec
import pydantic
import pytest

import worldline as wl
from worldline import testing
from worldline.kernel import user_values
from worldline.kernel.authoring import stored_types

T = TypeVar("T")
Count = NewType("Count", int)


class Custom:
    pass


class Color(enum.Enum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


class Odd(enum.Enum):
    ONE = object()


class Bits(enum.Flag):
    A = 1
    B = 2


class Pair(NamedTuple):
    a: int
    b: str


class Typed(TypedDict):
    a: int


@dataclass(frozen=True)
class One:
    a: int = 0


@dataclass(frozen=True)
class Other:
    b: int = 0


@dataclass(frozen=True)
class Box(Generic[T]):
    item: T


@dataclass(frozen=True)
class Node:
    next: Node | None = None
    items: tuple[Node, ...] = ()


@dataclass
class WithInit:
    a: int = 0
    b: dataclasses.InitVar[int] = 0


@dataclass
class Early:
    late: Late
    union: list[int | str] | None = None


@dataclass
class Late:
    a: int = 0


@dataclass
class Nothing:
    late: NotThere  # type: ignore[name-defined] # noqa: F821


class Flat(msgspec.Struct, array_like=True, frozen=True):
    a: int = 0


class Circle(msgspec.Struct, tag=True):
    r: int = 0


class Square(msgspec.Struct, tag=True):
    a: int = 0


class Model(pydantic.BaseModel):
    a: int = 0
    when: str | datetime = ""


class Secret(pydantic.BaseModel):
    word: pydantic.SecretStr


class Keyed(pydantic.BaseModel):
    by: dict[tuple[int, int], str]


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
# Types, and values of them that come back equal.
STORED: list[tuple[Any, list[Any]]] = [
    (int, [1]),
    (float, [1.5, 2.0]),
    (str, ["a"]),
    (bytes, [b"a"]),
    (bool, [True]),
    (bytearray, [bytearray(b"a")]),
    (Decimal, [Decimal("1.50")]),
    (uuid.UUID, [uuid.UUID(int=1)]),
    (datetime, [NOON]),
    (date, [date(2026, 1, 1)]),
    (time, [time(12)]),
    (timedelta, [timedelta(1)]),
    (Color, [Color.RED]),
    (Number, [Number.ONE]),
    (Bits, [Bits.A | Bits.B]),
    (set[int], [{1, 2}]),
    (set[float], [{1.5, 2.0}]),
    (set[bytes], [{b"a", b"b"}]),
    (set[Color], [{Color.RED}]),
    (set[tuple[int, str]], [{(1, "a"), (1, "b")}]),
    (set[int | float], [{1, 2.5}]),
    (set[Pair], [{Pair(1, "a"), Pair(2, "b")}]),
    (frozenset[str], [frozenset({"a", "b"})]),
    (set[frozenset[int]], [{frozenset({1}), frozenset({2})}]),
    (set[datetime], [{NOON}]),
    (set[Flat], [{Flat(1)}]),
    (set[Literal["a", "b"]], [{"a", "b"}]),
    (set[Any], [{1}]),
    (dict[int, int], [{1: 1}]),
    (dict[float, int], [{1.5: 1}]),
    (dict[datetime, int], [{NOON: 1}]),
    (dict[Color, int], [{Color.RED: 1}]),
    (dict[uuid.UUID, int], [{uuid.UUID(int=1): 1}]),
    (dict[Count, int], [{1: 1}]),
    (dict[Literal[1, 2], int], [{1: 1}]),
    (dict[Any, int], [{"a": 1}]),
    (dict[int | float, int], [{1: 1, 2.5: 2}]),
    (Sequence[int], [[1]]),
    (Mapping[str, int], [{"a": 1}]),
    (tuple[int, ...], [(1, 2)]),
    (tuple[int, str], [(1, "a")]),
    (One | int, [One(), 1]),
    (One | None, [One(), None]),
    (list[One | str], [[One(), "a"]]),
    (int | float, [1, 1.5]),
    (Circle | Square, [Circle(1), Square(2)]),
    (Decimal | float, [Decimal(1), 1.5]),
    (Model | None, [Model(), None]),
    (Box[int], [Box(1)]),
    (Box[One], [Box(One())]),
    (Node, [Node(Node(), (Node(),))]),
    (Pair, [Pair(1, "a")]),
    (Typed, [{"a": 1}]),
    (Model, [Model(a=1)]),
    (Early, [Early(Late(2))]),
    (Annotated[int, msgspec.Meta(ge=0)], [1]),
    (Literal["a", 1], ["a", 1]),
    (Final[int], [1]),
    (Any, [1, "a", [None]]),
    (pydantic.PositiveInt, [1]),
    (Count, [1]),
    (int | msgspec.UnsetType, [1]),
]
# Types, what leads inside them to what is wrong, and what is said of it.
REFUSED: list[tuple[Any, str, str]] = [
    (object, "", "object cannot be stored; use a dataclass"),
    (Custom, "", "Custom cannot be stored; use a dataclass"),
    (list[Custom | None], "[]", "Custom cannot be stored"),
    (dict[str, list[Box[Custom]]], "[][].item", "Custom cannot be stored"),
    (Callable[[int], int], "", "Callable cannot be stored"),
    (type(threading.Lock()), "", "lock cannot be stored"),
    (len, "", "cannot be stored: .* is not supported; use a dataclass"),
    (type[int], "", "type cannot be stored"),
    (re.Pattern[str], "", "Pattern cannot be stored"),
    (Iterable[int], "", "Iterable cannot be stored"),
    (collections.deque[int], "", "deque cannot be stored"),
    (collections.Counter[str], "", "Counter cannot be stored"),
    (collections.defaultdict[str, int], "", "defaultdict cannot be stored"),
    (complex, "", "complex cannot be stored"),
    (Odd, "", "Odd cannot be stored: Enums must contain"),
    (list[Odd], "[]", "Odd cannot be stored: Enums must contain"),
    (
        One | Other,
        "",
        "cannot be stored: Type unions may not contain more than one dataclass.*; use one type besides None",
    ),
    (list[One | Other | None], "[]", ".*more than one dataclass"),
    (Box[One | Other], "", "cannot be stored: .*more than one dataclass"),
    (list[int] | tuple[int, ...], "", "more than one array-like"),
    (str | datetime, "", "more than one str-like"),
    (str | Color, "", "more than one str-like"),
    (int | Number, "", "more than one int-like"),
    (dict[str, int] | One, "", "more than one dict-like"),
    (Model | int, "", "custom type may not contain any additional types"),
    (set[One], "", "a set of One cannot be stored, because such items have no order; use"),
    (set[int | str], "", r"a set of int \| str cannot be stored"),
    (set[int | None], "", r"a set of int \| none cannot be stored"),
    (set[list[int]], "", "a set of list cannot be stored"),
    (set[tuple[int, One]], "", "a set of tuple cannot be stored"),
    (set[Model], "", "a set of Model cannot be stored"),
    (
        dict[tuple[int, int], int],
        "",
        "a map with keys of type tuple cannot be stored, because keys are stored as text; use str",
    ),
    (dict[str | None, int], "", r"a map with keys of type str \| none cannot be stored"),
    (dict[str | int, int], "", r"a map with keys of type str \| int cannot be stored"),
    (dict[bytes, int], "", "a map with keys of type bytes cannot be stored"),
    (dict[bool, int], "", "a map with keys of type bool cannot be stored"),
    (dict[One, int], "", "a map with keys of type One cannot be stored"),
    (list[dict[frozenset[int], int]], "[]", "a map with keys of type frozenset cannot be stored"),
    (WithInit, "", "WithInit cannot be stored: dataclasses with `InitVar` fields"),
    (Secret, ".word", "SecretStr cannot be stored"),
    (Keyed, ".by", "a map with keys of type tuple cannot be stored"),
    (pydantic.SecretStr, "", "SecretStr cannot be stored: it has no stored form"),
    (Literal[b"a"], "", "Literal may only contain"),
    (LiteralString, "", "is not supported; use a dataclass"),
    (msgspec.Raw, "", "Raw cannot be stored; use bytes"),
    (msgspec.msgpack.Ext, "", "Ext cannot be stored; use bytes"),
    (7, "", "'7' is not supported"),
]


@pytest.mark.parametrize(("kind", "samples"), STORED, ids=[str(kind) for kind, _ in STORED])
def test_what_is_taken_comes_back(kind: Any, samples: list[Any]) -> None:
    stored_types.check(kind, "here")
    for sample in samples:
        found = user_values.load(kind, user_values.dump(sample))
        assert found == sample
        assert type(found) is type(sample)


def an_event(kind: Any) -> type:
    return dataclasses.make_dataclass("Ev", [("first", int), ("field", kind)], frozen=True)


def a_handler(event: type, kind: Any = None) -> Any:
    def take(self: Any, event: Any) -> Any: ...

    take.__annotations__ = {"event": event} if kind is None else {"event": event, "return": kind}
    return dataclass(type("Cell", (), {"take": wl.on(take), "__module__": __name__}))


def place(what: str, path: str) -> str:
    return re.escape(f"{what}, field {path.lstrip('.')!r}: " if path else f"{what}: ") + ".*"


@pytest.mark.parametrize(("kind", "path", "said"), REFUSED, ids=str)
def test_what_cannot_be_stored_is_refused_where_it_is_declared(kind: Any, path: str, said: str) -> None:
    """As an event's field, an argument, a result and an answer, each with its name."""
    app = wl.Program("p")

    async def flow(number: int, what: Any) -> Any: ...

    def effect(number: int = 0) -> Any: ...

    flow.__annotations__ = {"number": int, "what": kind, "return": int}
    effect.__annotations__ = {"number": int, "return": kind}
    with pytest.raises(wl.BadInput, match=place("Cell.take: Ev", f"field{path}") + said):
        app.reducer(a_handler(an_event(kind)))
    with pytest.raises(wl.BadInput, match=place("flow(): argument 'what'", path) + said):
        app.workflow(flow)
    with pytest.raises(wl.BadInput, match=place("effect(): its result", path) + said):
        app.effect(effect)
    with pytest.raises(wl.BadInput, match=place("the answer to Ask", path) + said):
        type("Ask", (wl.Request,), {"__orig_bases__": (wl.Request[kind],)})
    assert not app.workflows
    assert not app.effects
    assert not app.reducers


@pytest.mark.parametrize(("kind", "path", "said"), REFUSED, ids=str)
def test_what_a_cell_cannot_keep_is_refused(kind: Any, path: str, said: str) -> None:
    take = a_handler(One).__dict__["take"]
    names = {"take": take, "__module__": __name__}
    state = dataclasses.make_dataclass("Kept", [("count", int, 0), ("field", kind, None)], namespace=names)
    with pytest.raises(wl.BadInput, match=place("reducer Kept", f"field{path}") + said):
        wl.Program("p").reducer(state)


BELOW = """
from __future__ import annotations
from dataclasses import dataclass, field
import worldline as wl

app = wl.Program("below")

@dataclass(frozen=True)
class Event:
    late: Late

@app.reducer(key="who")
@dataclass
class Cell:
    count: int = 0
    seen: list[Late] = field(default_factory=list)

    @wl.on
    def take(self, event: Added) -> None:
        self.count += event.late.a
        self.seen.append(event.late)

    @wl.on
    def count_of(self, asked: Count) -> int:
        return self.count

@app.effect
async def effect(event: Event) -> Late: ...

@app.workflow
async def flow(event: Event) -> Late: ...

@dataclass(frozen=True)
class Count(wl.Request[int]):
    who: str

@dataclass(frozen=True)
class Added:
    who: str
    late: Late

@dataclass(frozen=True)
class Late:
    a: int = 1
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Any]:
    """A module of this name and text, imported."""

    def write(name: str, text: str) -> Any:
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        return importlib.import_module(name)

    return write


def test_types_may_be_defined_below_what_names_them(written: Callable[[str, str], Any]) -> None:
    below = written("types_below", BELOW)
    with testing.world(below.app) as world:
        world.send(below.Added("ada", below.Late(2)))
        assert world.state(below.Cell, "ada").seen == [below.Late(2)]
        assert world.ask(below.Count("ada")) == 2
        world.prove()


def test_the_hash_does_not_depend_on_where_types_are_defined(written: Callable[[str, str], Any]) -> None:
    head, reducer = BELOW.partition("@app.reducer")[::2]
    reducer, types = reducer.partition("@app.effect")[::2]
    above = written("types_above", head + "@app.effect" + types + "@app.reducer" + reducer)
    assert above.app.hash == written("types_behind", BELOW).app.hash


NO_NAME = r"\(\): the annotation '{}' names nothing known; define or import it at the top level of its file"
WRONG = {  # an edit of the file above, and what is said when it is hosted
    "an event": ("class Added:", "class Added2:", "18: take" + NO_NAME.format("Added")),
    "a request": ("class Count(", "class Count2(", "18: count_of" + NO_NAME.format("Count")),
    "a field": ("class Late:", "class Late2:", "18: Cell: an annotation of it names nothing known .*'Late'"),
    "no key": ("who: str\n    late", "whose: str\n    late", "18: Cell.take: Added has no field 'who'"),
    "an effect's": ("effect(event: Event)", "effect(event: Never)", "27: effect" + NO_NAME.format("Never")),
    "a workflow's": ("flow(event: Event)", "flow(event: Never)", "30: flow" + NO_NAME.format("Never")),
}


@pytest.mark.parametrize("kind", WRONG)
async def test_a_name_that_is_never_defined_is_refused_when_hosted(
    kind: str, written: Callable[[str, str], Any]
) -> None:
    before, after, said = WRONG[kind]
    assert before in BELOW
    name = f"types_{list(WRONG).index(kind)}"
    wrong, said = written(name, BELOW.replace(before, after)), f"^{name}.py:{said}"
    with pytest.raises(wl.BadInput, match=said) as refused:
        async with wl.open("memory://", host=wrong.app):
            pass
    assert type(refused.value) is wl.BadInput
    with pytest.raises(wl.BadInput, match=said), testing.world(wrong.app):
        pass


def test_a_type_that_names_nothing_is_refused_before_the_first_step() -> None:
    for declare in ("reducer", "workflow"):
        app = wl.Program("p")
        if declare == "reducer":
            app.reducer(a_handler(Nothing))
        else:

            @app.workflow
            async def flow(what: Nothing) -> None: ...

        with pytest.raises(wl.BadInput, match=r"Nothing: an annotation of it names nothing known .*'NotThere'"):
            assert app.routes is not None


FUNCTIONS: dict[str, tuple[Callable[[wl.Program], Any], str]] = {}


def refused(said: str) -> Callable[[Callable[[wl.Program], Any]], Callable[[wl.Program], Any]]:
    def keep(declare: Callable[[wl.Program], Any]) -> Callable[[wl.Program], Any]:
        FUNCTIONS[declare.__name__] = (declare, said)
        return declare

    return keep


@refused(r"@wl.on .*Cell.take is an async def, and a handler cannot await; .* wl.start")
def an_async_handler(_: wl.Program) -> Any:
    class Cell:
        @wl.on
        async def take(self, event: One) -> None: ...


@refused(r"@wl.on .*Cell.take is a generator: what it yields would be lost; make it a plain def")
def a_generator_as_a_handler(_: wl.Program) -> Any:
    class Cell:
        @wl.on
        def take(self, event: One) -> Any:
            yield 1


@refused(r"@wl.on .*Cell.take is a generator")
def an_async_generator_as_a_handler(_: wl.Program) -> Any:
    class Cell:
        @wl.on
        async def take(self, event: One) -> Any:
            yield 1


@refused("@wl.on must be a function, not property")
def a_property_as_a_handler(_: wl.Program) -> Any:
    class Cell:
        take: Any = wl.on(property(lambda _: None))  # type: ignore[call-overload]


@refused("workflow flow must be an async def")
def a_plain_workflow(app: wl.Program) -> Any:
    @app.workflow  # type: ignore[arg-type]
    def flow() -> None: ...


@refused("workflow flow is a generator: what it yields would be lost; make it an async def, without yield")
def a_generator_as_a_workflow(app: wl.Program) -> Any:
    @app.workflow
    def flow() -> Any:
        yield 1


@refused("workflow flow is a generator")
def an_async_generator_as_a_workflow(app: wl.Program) -> Any:
    @app.workflow(name="flow")
    async def other() -> Any:
        yield 1


@refused("effect fetch is a generator: .* make it a function that returns its answer, without yield")
def a_generator_as_an_effect(app: wl.Program) -> Any:
    @app.effect
    def fetch() -> Any:
        yield 1


@refused("effect fetch is a generator")
def an_async_generator_as_an_effect(app: wl.Program) -> Any:
    @app.effect(timeout=1)
    async def fetch() -> Any:
        yield 1


@refused("effect x must be a function, not int")
def a_number_as_an_effect(app: wl.Program) -> Any:
    app.effect(name="x")(7)  # type: ignore[call-overload]


@pytest.mark.parametrize(("declare", "said"), FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_functions_of_the_wrong_kind_are_refused_where_they_are_declared(
    declare: Callable[[wl.Program], Any], said: str
) -> None:
    app = wl.Program("p")
    with pytest.raises(wl.BadInput, match=said):
        declare(app)
    assert not app.workflows
    assert not app.effects


def test_a_handler_that_hides_what_it_is_fails() -> None:
    app = wl.Program("p")

    def hiding(fn: Any) -> Any:
        def inner(self: Any, event: One) -> Any:
            made = fn(self, event)
            made.close()
            return made

        inner.__annotations__ = {"event": One}
        return inner

    @app.reducer
    @dataclass
    class Cell:
        count: int = 0

        @wl.on
        @hiding
        async def take(self, event: One) -> None:
            self.count += 1

    with testing.world(app) as world:
        with pytest.raises(
            testing.NotTaken, match="returned a coroutine, whose code has not run: a handler is a plain"
        ):
            world.send(One())
        assert world.state(Cell).count == 0
        world.prove()
