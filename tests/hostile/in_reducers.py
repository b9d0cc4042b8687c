"""Places in reducers: handlers, their answers, their state, their events, and what they ask for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import worldline as wl
from tests.hostile.making import Act, Making, Places, ask, send

places = Places()


@places.add()
def event_handler(making: Making) -> list[Act]:
    do = making.do

    @dataclass(frozen=True)
    class Poke:
        __schema__ = making.name("Poke")

    @making.app.reducer(name=making.name("Cell"))
    @dataclass
    class Cell:
        value: Any = 0

        @wl.on
        def poke(self, event: Poke) -> None:
            self.value = do()

    return [send(Poke(), judged=True), send(Poke(), judged=True)]


@places.add()
def answer(making: Making) -> list[Act]:
    do = making.do

    @dataclass(frozen=True)
    class Poke(wl.Request[Any]):
        __schema__ = making.name("Poke")

    @making.app.reducer(name=making.name("Cell"))
    @dataclass
    class Cell:
        count: int = 0

        @wl.on
        def poke(self, event: Poke) -> Any:
            self.count += 1
            return do()

    return [ask(Poke(), judged=True), ask(Poke(), judged=True)]


@places.add()
def state_behind_an_answer(making: Making) -> list[Act]:
    do = making.do

    @dataclass(frozen=True)
    class Poke(wl.Request[int]):
        __schema__ = making.name("Poke")

    @making.app.reducer(name=making.name("Cell"))
    @dataclass
    class Cell:
        count: int = 0
        values: list[Any] = field(default_factory=list)

        @wl.on
        def poke(self, event: Poke) -> int:
            self.count += 1
            self.values.append(do())
            return self.count

    return [ask(Poke(), judged=True), ask(Poke(), judged=True)]


@places.add(stores=False)
def typed_state(making: Making) -> list[Act]:
    """A field that is declared as a number gets anything."""
    do = making.do

    @dataclass(frozen=True)
    class Poke(wl.Request[int]):
        __schema__ = making.name("Poke")

    @making.app.reducer(name=making.name("Cell"))
    @dataclass
    class Cell:
        number: int = 0
        text: str = ""

        @wl.on
        def poke(self, event: Poke) -> int:
            self.number = self.text = do()
            return 1

    return [ask(Poke(), judged=True)]


@places.add(stores=False)
def undeclared_attribute(making: Making) -> list[Act]:
    do = making.do

    @dataclass(frozen=True)
    class Poke(wl.Request[int]):
        __schema__ = making.name("Poke")

    @making.app.reducer(name=making.name("Cell"))
    @dataclass
    class Cell:
        number: int = 0

        @wl.on
        def poke(self, event: Poke) -> int:
            self.other = do()
            return 1

    return [ask(Poke(), judged=True), ask(Poke(), judged=True)]


@places.add()
def keyed_handler(making: Making) -> list[Act]:
    do = making.do

    @dataclass(frozen=True)
    class Poke(wl.Request[Any]):
        name: str
        __schema__ = making.name("Poke")

    @making.app.reducer(key="name", name=making.name("Cell"))
    @dataclass
    class Cell:
        value: Any = 0

        @wl.on
        def poke(self, event: Poke) -> Any:
            self.value = do() if event.name == "bad" else 1
            return self.value

    return [ask(Poke("good")), ask(Poke("bad"), judged=True), ask(Poke("bad"), judged=True), ask(Poke("good"))]


@places.add(stores=False)
def key_of_an_event(making: Making) -> list[Act]:
    do = making.do

    @dataclass(frozen=True)
    class Poke(wl.Request[Any]):
        name: Any
        __schema__ = making.name("Poke")

        def __getattribute__(self, name: str) -> Any:
            made = do() if name == "name" else 0
            return made or object.__getattribute__(self, name)

    @making.app.reducer(key="name", name=making.name("Cell"))
    @dataclass
    class Cell:
        value: int = 0

        @wl.on
        def poke(self, event: Poke) -> Any:
            self.value += 1
            return 1

    return [ask(Poke("a"), judged=True)]


@places.add(stores=False)
def made_event(making: Making) -> list[Act]:
    do = making.do

    @dataclass
    class Poke(wl.Request[Any]):
        name: Any
        __schema__ = making.name("Poke")

        def __post_init__(self) -> None:
            self.name = do()

    @making.app.reducer(name=making.name("Cell"))
    @dataclass
    class Cell:
        value: int = 0

        @wl.on
        def poke(self, event: Poke) -> Any:
            self.value += 1
            return 1

    return [ask(Poke("a"), judged=True)]


@places.add()
def default_of_a_field(making: Making) -> list[Act]:
    do = making.do

    @dataclass(frozen=True)
    class Poke(wl.Request[Any]):
        __schema__ = making.name("Poke")

    @making.app.reducer(name=making.name("Cell"))
    @dataclass
    class Cell:
        value: Any = field(default_factory=do)

        @wl.on
        def poke(self, event: Poke) -> Any:
            return 1

    return [ask(Poke(), judged=True)]


@places.add(stores=False)
def made_reducer(making: Making) -> list[Act]:
    """Also when it is read back from its bytes."""
    do = making.do

    @dataclass(frozen=True)
    class Poke(wl.Request[Any]):
        __schema__ = making.name("Poke")

    @making.app.reducer(name=making.name("Cell"))
    @dataclass
    class Cell:
        values: list[int] = field(default_factory=list)

        def __post_init__(self) -> None:
            do()

        @wl.on
        def poke(self, event: Poke) -> Any:
            self.values.append(1)
            return 1

    return [ask(Poke(), judged=True), ask(Poke(), judged=True)]


@places.add(shows=False, stores=False)
def read_back(making: Making) -> list[Act]:
    """Fine when it is new, and hostile when it is read back from its bytes."""
    do = making.do

    @dataclass(frozen=True)
    class Poke(wl.Request[Any]):
        __schema__ = making.name("Poke")

    @making.app.reducer(name=making.name("Cell"))
    @dataclass
    class Cell:
        values: list[int] = field(default_factory=list)

        def __post_init__(self) -> None:
            if len(self.values) == 2:
                do()

        @wl.on
        def poke(self, event: Poke) -> Any:
            self.values.append(1)
            return 1

    return [ask(Poke()), ask(Poke()), ask(Poke())]


@places.add(stores=False)
def missing_method(making: Making) -> list[Act]:
    """A reducer that finds its own attributes by the behaviour."""
    do = making.do

    @dataclass(frozen=True)
    class Poke(wl.Request[Any]):
        __schema__ = making.name("Poke")

    @making.app.reducer(name=making.name("Cell"))
    @dataclass
    class Cell:
        value: int = 0

        def __getattribute__(self, name: str) -> Any:
            if name in ("poke", "value"):
                do()
            return object.__getattribute__(self, name)

        @wl.on
        def poke(self, event: Poke) -> Any:
            return 1

    return [ask(Poke(), judged=True)]


@places.add()
def raised_event(making: Making) -> list[Act]:
    """A handler raises an event with a strange field; another handler raises one that is strange to take."""
    do = making.do

    @dataclass(frozen=True)
    class Poke(wl.Request[Any]):
        __schema__ = making.name("Poke")

    @dataclass(frozen=True)
    class Strange:
        value: Any
        __schema__ = making.name("Strange")

    @making.app.reducer(name=making.name("Cell"))
    @dataclass
    class Cell:
        value: int = 0

        @wl.on
        def poke(self, event: Poke) -> Any:
            self.value += 1
            wl.emit(Strange(do()))
            return 1

        @wl.on
        def strange(self, event: Strange) -> None:
            self.value += 1

    return [ask(Poke(), judged=True)]


@places.add(shows=False, stores=False)
def handler_of_a_raised_event(making: Making) -> list[Act]:
    do = making.do

    @dataclass(frozen=True)
    class Poke(wl.Request[Any]):
        __schema__ = making.name("Poke")

    @dataclass(frozen=True)
    class Strange:
        __schema__ = making.name("Strange")

    @making.app.reducer(name=making.name("Cell"))
    @dataclass
    class Cell:
        value: Any = 0

        @wl.on
        def poke(self, event: Poke) -> Any:
            wl.emit(Strange())
            wl.after(0.01, Strange())
            return 1

        @wl.on
        def strange(self, event: Strange) -> None:
            self.value = do()

    return [ask(Poke(), judged=True)]


@places.add()
def second_of_two_handlers(making: Making) -> list[Act]:
    """The first has changed its cell already."""
    do = making.do

    @dataclass(frozen=True)
    class Poke:
        __schema__ = making.name("Poke")

    @making.app.reducer(name=making.name("A"))
    @dataclass
    class First:
        count: int = 0

        @wl.on
        def poke(self, event: Poke) -> None:
            self.count += 1
            wl.emit(Poke()) if self.count < 3 else None

    @making.app.reducer(name=making.name("B"))
    @dataclass
    class Second:
        value: Any = 0

        @wl.on
        def poke(self, event: Poke) -> None:
            self.value = do()

    return [send(Poke(), judged=True)]


@places.add()
def later_event(making: Making) -> list[Act]:
    do = making.do

    @dataclass(frozen=True)
    class Poke(wl.Request[Any]):
        __schema__ = making.name("Poke")

    @dataclass(frozen=True)
    class Strange:
        value: Any
        __schema__ = making.name("Strange")

    @making.app.reducer(name=making.name("Cell"))
    @dataclass
    class Cell:
        value: Any = 0

        @wl.on
        def poke(self, event: Poke) -> Any:
            wl.after(0.01, Strange(do()))
            return 1

        @wl.on
        def strange(self, event: Strange) -> None:
            self.value += 1

    return [ask(Poke(), judged=True)]


@places.add()
def started_with(making: Making) -> list[Act]:
    do = making.do

    @dataclass(frozen=True)
    class Poke(wl.Request[Any]):
        __schema__ = making.name("Poke")

    @making.app.workflow(name=making.name("flow"))
    async def flow(value: Any) -> Any:
        return value

    @making.app.reducer(name=making.name("Cell"))
    @dataclass
    class Cell:
        value: Any = 0

        @wl.on
        def poke(self, event: Poke) -> Any:
            _ = wl.start(flow(do()))
            return 1

    return [ask(Poke(), judged=True)]


@places.add(stores=False)
def api_of_handlers(making: Making) -> list[Act]:
    """Everything that a handler may call, with the behaviour's value for an argument."""
    do = making.do

    @dataclass(frozen=True)
    class Poke(wl.Request[Any]):
        which: int
        __schema__ = making.name("Poke")

    @making.app.reducer(name=making.name("Cell"))
    @dataclass
    class Cell:
        value: int = 0

        @wl.on
        def poke(self, event: Poke) -> Any:
            value = do()
            uses = (
                wl.emit,
                wl.start,
                wl.random,
                wl.uuid,
                wl.state,
                wl.unschedule,
                wl.patched,
                wl.continue_as_new,
                lambda given: wl.after(given, Poke(0)),
                lambda given: wl.after(0.01, given),
                lambda given: wl.schedule(given, Poke(0), every=9),
                lambda given: wl.schedule("s", given, every=9),
                lambda given: wl.schedule("s", Poke(0), every=given),
                lambda given: wl.schedule("s", Poke(0), cron=given),
                lambda given: wl.schedule("s", Poke(0), cron="* * * * *", tz=given),
                lambda given: wl.state(Cell, given),
                lambda given: wl.log.warning("%s", given),
                lambda given: wl.start(given, id=given),
            )
            uses[event.which](value)
            wl.unschedule("s")
            return 1

    return [ask(Poke(which), judged=True) for which in range(18)]
