"""The kernel's API called with what it cannot take: the run or event fails with a text that is the same in every
process, live and replayed, and the world goes on.
"""

from __future__ import annotations

import asyncio
import enum
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Never

import pytest

import worldline as wl
from worldline import testing
from worldline.base import errors, limits
from worldline.kernel import event_dispatch, run_operations, user_errors, user_values


class Yields:
    def __init__(self, record: object) -> None:
        self._record = record

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self._record)


@dataclass(frozen=True)
class Note:
    text: str = ""


@dataclass(frozen=True)
class Unnamed:
    __schema__ = "x" * 200


@dataclass(frozen=True)
class Count(wl.Request[int]):
    name: str


Flow = Callable[[], wl.Call[Any]]


def a_program(do: Callable[[], Any]) -> tuple[wl.Program, Flow, Flow]:
    """A program with two workflows: one does it at its end, one survives it and is rebuilt afterwards."""
    app = wl.Program("misused")

    @app.reducer(key="name")
    @dataclass
    class Counter:
        count: int = 0
        notes: list[str] = field(default_factory=list)

        @wl.on
        def add(self, event: Count) -> int:
            self.count += 1
            return self.count

    @app.workflow
    async def misuses() -> Any:
        await wl.sleep(1)
        made = do()
        return await made if hasattr(made, "__await__") else made

    @app.workflow
    async def survives() -> str:
        said = ""
        try:
            made = do()
            _ = await made if hasattr(made, "__await__") else made
        except Exception as error:  # noqa: BLE001 - what it is belongs to the case
            said = type(error).__name__
        await wl.sleep(1)
        return said

    return app, misuses, survives


FORGED = {
    "no such operation": lambda: run_operations.All((99,)),
    "a negative one": lambda: run_operations.All((-7,)),
    "text": lambda: run_operations.All(("a",)),  # type: ignore[arg-type]
    "a bool": lambda: run_operations.All((True,)),
    "none": lambda: run_operations.All(None),  # type: ignore[arg-type]
    "a list": lambda: run_operations.All([0]),  # type: ignore[arg-type]
    "nothing to wait for": lambda: run_operations.All(()),
    "the first of nothing": lambda: run_operations.First(()),
    "the first of one": lambda: run_operations.First((0,)),
    "the first of unknown ones": lambda: run_operations.First((5, 6)),
    "joining unknown ones": lambda: run_operations.Joined((5, 6)),
    "joining nothing": lambda: run_operations.Joined(()),
    "closing unknown ones": lambda: run_operations.ScopeClosing((5,)),
    "closing with a timer that is none": lambda: run_operations.ScopeClosing((0,), timer=7),
    "closing with text for a timer": lambda: run_operations.ScopeClosing((0,), timer="x"),  # type: ignore[arg-type]
    "closing with a negative timer": lambda: run_operations.ScopeClosing((0,), timer=-2),
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED.keys())
def test_a_forged_await_fails_its_run(forged: Callable[[], object]) -> None:
    app, misuses, survives = a_program(lambda: Yields(forged()))
    with testing.world(app) as world:
        with pytest.raises(wl.RunFailed, match=r"NotDurable: awaited (All|First|Joined|ScopeClosing)"):
            world.run(misuses())
        assert world.run(survives()) == "NotDurable"
        assert world.ask(Count("a")) == 1
        world.prove()


def test_an_await_that_is_used_again_is_checked_again() -> None:
    """A run that is kept does what it does when it is rebuilt: the failure of an operation is raised each time."""
    app = wl.Program("again")

    @app.effect
    def breaks() -> None:
        raise wl.Fatal("broken")

    @app.workflow
    async def child() -> None:
        await wl.sleep(100)

    @app.workflow
    async def twice() -> int:
        wl.start(breaks())
        wl.start(child())
        both, failed = run_operations.All((0, 1)), 0
        for _ in range(2):
            try:
                await Yields(both)
            except wl.EffectFailed:
                failed += 1
        return failed

    script = wl.Script().on(breaks, wl.Fatal("broken"))
    with testing.world(app, script, drops=False) as warm, testing.world(app, script, seed=3) as dropped:
        for world in (warm, dropped):
            world.start(twice(), id="r")
            world.advance(10)
            assert world.attach("r").done  # without waiting for the child
            assert world.attach("r").result() == 2
            world.prove()
        assert warm.journal() == dropped.journal()


def test_a_forged_end_fails_its_run() -> None:
    """Only `wl.continue_as_new` can say what a run goes on with."""

    def forge() -> Never:
        raise run_operations.ContinueAsNew

    app, misuses, _ = a_program(forge)
    with testing.world(app) as world:
        with pytest.raises(wl.RunFailed, match="ContinueAsNew"):
            world.run(misuses())
        world.prove()


IMPOSSIBLE: dict[str, tuple[Callable[[], Any], str]] = {
    "a world's name is too long": (lambda: wl.send("w" * 200, Note()), "limit is 128"),
    "a world's name of the size of a state": (lambda: wl.send("w" * 17_000_000, Note()), "limit is 128"),
    "a world's name is empty": (lambda: wl.ask("", Count("a")), "a world's name must be printable"),
    "a world's name has no bytes": (lambda: wl.send("\ud800", Note()), "a world's name must be printable"),
    "a run's id is too long": (lambda: wl.send("w", Note(), to="r" * 200_000), "a run's id may have 1024 bytes"),
    "an event's name is too long": (lambda: wl.send("w", Unnamed()), "an event's name is 200 bytes"),
    "an event's name is too long for a timer": (lambda: wl.after(1, Unnamed()), "an event's name is 200 bytes"),
    "a scope that was not entered is cancelled": (lambda: wl.Scope(None, shield=False).cancel(), "has to be entered"),
}


@pytest.mark.parametrize(("do", "said"), IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_what_cannot_be_done_fails_its_run(do: Callable[[], Any], said: str) -> None:
    app, misuses, survives = a_program(do)
    with testing.world(app) as world:
        with pytest.raises(wl.RunFailed, match=said):
            world.run(misuses())
        assert world.run(survives()) in ("BadInput", "TooLarge")
        assert world.ask(Count("a")) == 1
        world.prove()


class Unsaid:
    def __init__(self, error: type[BaseException]) -> None:
        self._error = error

    def __str__(self) -> Never:
        raise self._error("no text")

    __repr__ = __str__

    def __bool__(self) -> Never:
        raise self._error("no truth")


LINES: dict[str, Callable[[], Any]] = {
    "text that raises": lambda: wl.log.warning(Unsaid(ValueError)),
    "text that exits": lambda: wl.log.warning(Unsaid(SystemExit)),
    "an argument that raises": lambda: wl.log.warning("%s", Unsaid(ValueError)),
    "an argument that exits": lambda: wl.log.error("%s %s", Unsaid(SystemExit), 1),
    "a map that has no truth": lambda: wl.log.warning("%(a)s", {"a": Unsaid(ValueError)}),
    "too few arguments": lambda: wl.log.warning("%s %s", 1),
    "an option that is unknown": lambda: wl.log.warning("a", colour="red"),
    "extra that is taken": lambda: wl.log.warning("a", extra={"message": "b"}),
    "extra that is no map": lambda: wl.log.warning("a", extra=7),  # type: ignore[arg-type]
    "a level that is none": lambda: wl.log.log("high", "a"),  # type: ignore[arg-type]
    "a level that is asked for": lambda: wl.log.isEnabledFor("high") and 1 / 0,  # type: ignore[arg-type]
    "a field that raises": lambda: wl.log.warning("a", claim=Unsaid(ValueError)),
    "a field that exits": lambda: wl.log.warning("a", claim=Unsaid(SystemExit)),
    "a field that recurses": lambda: wl.log.warning("a", claim=endless()),
    "fields named as parameters": lambda: wl.log.warning("a", msg=1, level=2, args=3, self=4, fields=5),
    "fields named as attributes": lambda: wl.log.warning("a", message=1, name=2, world=3, exc_text=4),
    "a stack level that is none": lambda: wl.log.warning("a", stacklevel="high"),  # type: ignore[arg-type]
    "an exception that is none": lambda: wl.log.warning("a", exc_info=Unsaid(OSError)),  # type: ignore[arg-type]
    "no exception": lambda: wl.log.exception("a"),
    "text that draws": lambda: wl.log.warning("%s", Drawn(), claim=Drawn()),
}


def endless() -> list[Any]:
    inner: list[Any] = []
    for _ in range(100_000):
        inner = [inner]
    return inner


class Drawn:
    """Its text draws a number, which would shift those that follow, where text is made."""

    def __str__(self) -> str:
        return f"{wl.random().random()}"

    __repr__ = __str__


@pytest.mark.parametrize("line", LINES.values(), ids=LINES.keys())
def test_logging_never_raises(line: Callable[[], Any]) -> None:
    """Silent in a replay, it could not raise there."""
    app, misuses, survives = a_program(line)
    with testing.world(app) as world:
        assert not world.run(misuses())
        assert world.run(survives()) == ""
        world.prove()


def test_a_key_is_bounded() -> None:
    app, _, _ = a_program(lambda: None)
    with testing.world(app) as world:
        assert world.ask(Count("k" * limits.CELL_KEY_BYTES_MAX)) == 1
        with pytest.raises(errors.Error, match="the key of a cell is 4097 bytes"):
            world.ask(Count("k" * (limits.CELL_KEY_BYTES_MAX + 1)))
        world.prove()


class Strange(enum.Enum):
    ONE = object()


def test_a_key_is_the_same_text_in_every_process() -> None:
    """The text of an object would be its address."""
    with pytest.raises(errors.EncodeError, match="object cannot be stored"):
        event_dispatch._cell_key(Strange.ONE)
    assert event_dispatch._cell_key((1, "a")) == "(1, 'a')"


def test_text_of_errors_is_the_same_in_every_process() -> None:
    """Two items that cannot be sorted depend on how Python hashes, a thread's name on the process."""
    said = set()
    for items in ({1, "a"}, {"a", 1}, {(1,), "a", 2}):
        with pytest.raises(errors.EncodeError) as refused:
            user_values.dump(items)
        said.add(str(refused.value))
    assert said == {"set cannot be stored: the items of a set cannot be sorted"}
    assert user_errors.repr_of({"a", "b"}) == "<set>"

    def ask_for_loop() -> None:
        try:
            asyncio.get_event_loop()
        except RuntimeError as error:
            said.add(user_errors.message_in_step(error))

    said.clear()
    for name in ("one", "two"):
        thread = threading.Thread(target=ask_for_loop, name=name)
        thread.start()
        thread.join()
    assert len(said) == 1
    assert "one" not in said.pop()
