"""Reducers as they are declared: mistakes are found then, or before the first step; and what handlers may ask for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import IPv4Address
from typing import Any, Literal, NoReturn
from uuid import UUID

import pydantic
import pytest

import worldline as wl
from tests.kernel import shop
from tests.kernel.test_reducers import Echo, Started, Undo
from worldline import testing
from worldline.base import limits
from worldline.codec import canonical
from worldline.model.journal import Kind


def bad_reducers() -> dict[str, Any]:
    app = wl.Program("bad")

    def no_default() -> None:
        @app.reducer()
        @dataclass
        class NoDefault:
            number: int

            @wl.on
            def started(self, event: Started) -> None: ...

    def no_handler() -> None:
        @app.reducer()
        @dataclass
        class NoHandler:
            number: int = 0

    def no_type() -> None:
        @app.reducer()
        @dataclass
        class NoType:
            @wl.on
            def started(self, event) -> None: ...  # type: ignore[no-untyped-def]

    def no_key() -> None:
        @app.reducer(key="account")
        @dataclass
        class NoKey:
            @wl.on
            def started(self, event: Started) -> None: ...

    def wrong_answer() -> None:
        @app.reducer(key="account")
        @dataclass
        class WrongAnswer:
            @wl.on
            def withdraw(self, event: shop.Withdraw) -> str:
                return ""

    def wrong_default() -> None:
        @app.reducer()
        @dataclass
        class WrongDefault:
            number: int = "zero"  # type: ignore[assignment]

            @wl.on
            def started(self, event: Started) -> None: ...

    return {
        "every field needs a default": no_default,
        "no handler": no_handler,
        "must take one event": no_type,
        "has no field 'account'": no_key,
        "is answered with <class 'int'>": wrong_answer,
        "not a WrongDefault": wrong_default,
    }


@pytest.mark.parametrize(("message", "declare"), bad_reducers().items(), ids=lambda each: getattr(each, "__name__", ""))
def test_mistakes_are_found_at_declaration(message: str, declare: Any) -> None:
    with pytest.raises(wl.Error, match=message):
        declare()


class Opaque:
    """A class that is none of the kinds that can be stored."""


@dataclass(frozen=True)
class Part:
    file: IPv4Address


@dataclass(frozen=True)
class Upload:
    name: str
    parts: dict[str, list[Part]]


class Report(pydantic.BaseModel):
    title: str
    file: IPv4Address


@dataclass(frozen=True)
class Tree:
    children: list[Tree]
    when: datetime
    extra: Any = None


def unstorable() -> dict[str, Any]:
    app = wl.Program("unstorable")

    def an_argument() -> None:
        @app.effect
        async def argument(size: int, where: IPv4Address) -> None: ...

    def inside_an_argument() -> None:
        @app.workflow
        async def inside(upload: Upload) -> None: ...

    def a_plain_class() -> None:
        @app.workflow
        async def opaque(thing: Opaque | None = None) -> None: ...

    def a_result() -> None:
        @app.effect
        def result() -> list[Opaque]:
            return []

    def a_model() -> None:
        @app.effect
        def model(report: Report) -> None: ...

    def an_event() -> None:
        @app.reducer
        @dataclass
        class Uploads:
            @wl.on
            def upload(self, event: Upload) -> None: ...

    def an_answer() -> None:
        @dataclass(frozen=True)
        class Fetch(wl.Request[dict[str, Part]]):
            name: str

    def a_state() -> None:
        @app.reducer
        @dataclass
        class Folder:
            path: IPv4Address | None = None

            @wl.on
            def started(self, event: Started) -> None: ...

    def later() -> None:
        other = wl.Program("later")

        @other.workflow
        async def waits(part: Later) -> None: ...

        @dataclass
        class Later:
            file: IPv4Address

        waits.signature._namespace["Later"] = Later  # as a module's global that is assigned below the declaration
        with testing.world(other):
            pass

    def awaited() -> None:
        other = wl.Program("awaited")

        @other.workflow
        async def waits() -> None:
            await wl.wait(Upload)

        with testing.world(other):
            pass

    return {
        r"argument\(\): argument 'where': IPv4Address cannot be stored; use a dataclass": an_argument,
        r"inside\(\): argument 'upload', field 'parts\[\]\[\]\.file': IPv4Address cannot be stored": inside_an_argument,
        r"opaque\(\): argument 'thing': Opaque cannot be stored": a_plain_class,
        r"result\(\): its result, field '\[\]': Opaque cannot be stored": a_result,
        r"model\(\): argument 'report', field 'file': IPv4Address cannot be stored": a_model,
        r"Uploads.upload: Upload, field 'parts\[\]\[\]\.file': IPv4Address cannot be stored": an_event,
        r"the answer to Fetch, field '\[\]\.file': IPv4Address cannot be stored": an_answer,
        r"reducer Folder, field 'path': IPv4Address cannot be stored": a_state,
        r"waits\(\): argument 'part', field 'file': IPv4Address cannot be stored": later,
        r"waits\(\) waits for Upload, field 'parts\[\]\[\]\.file': IPv4Address cannot be stored": awaited,
    }


@pytest.mark.parametrize(("message", "declare"), unstorable().items(), ids=lambda each: getattr(each, "__name__", ""))
def test_types_that_cannot_be_stored_are_found_at_declaration(message: str, declare: Any) -> None:
    with pytest.raises(wl.BadInput, match=message):
        declare()


def test_types_that_can_be_stored_are_not() -> None:
    class Sheet(pydantic.BaseModel):
        rows: list[dict[str, float]]

    app = wl.Program("storable")

    @app.workflow
    async def takes(
        tree: Tree, sheet: Sheet, part: tuple[int, ...] | None, each: Literal["a"], *rest: UUID, **named: timedelta
    ) -> NoReturn:
        raise ValueError

    @app.effect
    def untyped(a, b=None):  # type: ignore[no-untyped-def]
        return a

    with testing.world(app):
        pass


def test_a_value_that_cannot_be_stored_is_named_by_its_field() -> None:
    app = wl.Program("values")

    @app.workflow
    async def takes(what: Any) -> Any:
        return what

    with testing.world(app) as world:
        with pytest.raises(wl.BadInput, match=r"takes\(\): argument what\.a\[1\] cannot be stored: IPv4Address is not"):
            world.start(takes({"a": [1, IPv4Address("1.2.3.4")]}))
        with pytest.raises(wl.BadInput, match=r"Part cannot be stored: field file: IPv4Address is not a dataclass"):
            world.send(Part(IPv4Address("1.2.3.4")))


def test_a_reducer_needs_no_parentheses() -> None:
    app = wl.Program("bare")

    @app.reducer
    @dataclass
    class Count:
        n: int = 0

        @wl.on
        def started(self, event: Started) -> None:
            self.n += 1

    with testing.world(app) as world:
        world.send(Started("x"))
        assert world.state(Count).n == 1
    assert list(app.reducers) == ["Count"]


def test_what_is_no_request_is_not_asked() -> None:
    app = wl.Program("asks")

    @app.workflow
    async def asks() -> str:
        await wl.ask("bank", Started("x"))  # type: ignore[arg-type]
        return ""

    with testing.world(app) as world:
        with pytest.raises(wl.BadInput, match=r"Started is not a request, .* `class Started\(wl.Request"):
            world.ask(Started("x"))  # type: ignore[arg-type]
        assert world.head.height == 0
        with pytest.raises(wl.RunFailed, match="Started is not a request"):
            world.run(asks())
        assert [entry.kind for entry in world.journal() if entry.kind is Kind.MESSAGE_SENT] == []


def test_two_answers_to_one_request_and_two_types_of_one_name_are_refused() -> None:
    def another(app: wl.Program, name: str) -> None:
        @app.reducer(key="account", name=name)
        @dataclass
        class Other:
            @wl.on
            def withdraw(self, event: shop.Withdraw) -> int:
                return 1

    app = wl.Program("two")
    another(app, "A")
    another(app, "B")
    with pytest.raises(wl.BadInput, match="two handlers: A, B"), testing.world(app):
        pass

    def local() -> type:
        @dataclass(frozen=True)
        class Started:
            other: int

        return Started

    names = wl.Program("names")
    for kind in (Started, local()):

        def take(self: Any, event: Any) -> None: ...

        take.__annotations__ = {"event": kind}
        made: Any = dataclass(type("R", (), {"take": wl.on(take), "__module__": __name__}))
        names.reducer(name=f"R{kind.__qualname__}")(made)
    with pytest.raises(wl.BadInput, match="two event classes are named Started"), testing.world(names):
        pass


def test_effects_cannot_be_called_in_handlers() -> None:
    app = wl.Program("strict")
    app.effects["shout"] = shop.shout

    @app.reducer()
    @dataclass
    class Hopeful:
        @wl.on
        def started(self, event: Started) -> None:
            shop.shout(event.name)  # type: ignore[unused-awaitable]

        @wl.on
        def echo(self, event: Echo) -> None:
            _ = wl.start(shop.shout(event.name))

    with testing.world(app) as world:
        with pytest.raises(testing.NotTaken, match="never awaited"):
            world.send(Started("x"))
        with pytest.raises(testing.NotTaken, match="workflows only"):
            world.send(Echo("x"))


def endless() -> wl.Program:
    app = wl.Program("endless")

    @app.reducer()
    @dataclass
    class Round:
        count: int = 0

        @wl.on
        def echo(self, event: Echo) -> None:
            self.count += 1
            wl.emit(Echo(event.name, event.left))

        @wl.on
        def started(self, event: Started) -> None:
            self.count += 1
            for _ in range(len(event.name)):
                wl.emit(Undo(event.name))

        @wl.on
        def undo(self, event: Undo) -> None:
            self.count += 1

        @wl.on
        def deposited(self, event: shop.Deposited) -> None:
            for _ in range(event.cents):
                wl.emit(Undo("x" * 15_000))

    return app


def test_a_step_may_raise_so_many_events_and_then_says_so_once() -> None:
    with testing.world(endless()) as world:
        world.send(Echo("x"))
        kinds = [entry.kind for entry in world.journal()]
        assert kinds.count(Kind.EVENT_RAISED) == limits.STEP_EVENTS_MAX
        assert kinds.count(Kind.HANDLER_FAILED) == 1
        assert world.machine.cells["Round", ""].value.count == limits.STEP_EVENTS_MAX + 1
        world.prove()


def test_a_handler_that_asks_for_too_much_fails() -> None:
    with testing.world(endless(), twice=False) as world:
        world.send(Started("x" * 256))
        with pytest.raises(testing.NotTaken, match="LimitExceeded"):
            world.send(Started("x" * 257))
        with pytest.raises(testing.NotTaken, match="LimitExceeded"):
            world.send(shop.Deposited("few, but large", 20))
        assert canonical.decode(world.machine.cells["Round", ""].data) == {"count": 257}
