"""Reducers as they are declared: mistakes are found then, or before the first step; and what handlers may ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import worldline as wl
from tests.kernel import shop
from tests.kernel.test_reducers import Echo, Started, Undo
from worldline import testing
from worldline.base import limits
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
        assert world.machine.cells["Round", ""].value.count == 257
