"""User code that raises hostile exceptions, wherever the kernel calls it: each is that code's failure, in plain text,
the machine takes the next input, and replaying the journal comes to the same bytes.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Generator
from typing import Any, NoReturn

import pytest

import worldline as wl
from worldline import testing
from worldline.base import errors
from worldline.host.feature_list import PARTS
from worldline.kernel import context, user_errors
from worldline.kernel import step as kernel_step
from worldline.kernel.machine import Machine
from worldline.kernel.rows.row_records import RunStatus
from worldline.model import ids, inbox, payload, step_records
from worldline.model.journal import Kind


class Text(str):
    """Text that lies about itself."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> NoReturn:
        raise SystemExit("no slices")

    def __len__(self) -> int:
        return 3

    def __bool__(self) -> bool:
        raise ValueError("no truth")

    def __eq__(self, other: object) -> bool:
        raise ValueError("no comparing")

    def __hash__(self) -> int:
        raise ValueError("no hash")

    def encode(self, *given: Any, **named: Any) -> NoReturn:
        raise RecursionError("no bytes")

    def __format__(self, spec: str) -> NoReturn:
        raise KeyboardInterrupt("no formatting")


def saying(said: Callable[[], Any], base: type[BaseException] = Exception) -> type[BaseException]:
    class Hostile(base):  # type: ignore[valid-type, misc]
        def __str__(self) -> str:
            text: str = said()
            return text

        __repr__ = __str__

    return Hostile


def coded(code: Callable[[], Any]) -> type[BaseException]:
    class Coded(Exception):
        @property
        def code(self) -> Any:
            return code()

    return Coded


def throw(error: BaseException) -> Callable[[], NoReturn]:
    def thrower() -> NoReturn:
        raise error

    return thrower


class Naming(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise SystemExit("no name")


class Nameless(Exception, metaclass=Naming):
    pass


class Masked(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise SystemExit("no class")

    @property
    def __traceback__(self) -> Any:  # type: ignore[override]
        raise SystemExit("no trace")

    def __getattribute__(self, name: str) -> Any:
        raise GeneratorExit(name)


def recursing() -> str:
    return recursing() + "."


HOSTILE: dict[str, Callable[[], BaseException]] = {
    "str raises": lambda: saying(throw(ValueError("no text")))(),
    "str exits": lambda: saying(throw(SystemExit(3)))(),
    "str is interrupted": lambda: saying(throw(KeyboardInterrupt()))(),
    "str closes": lambda: saying(throw(GeneratorExit()))(),
    "str cancels": lambda: saying(throw(asyncio.CancelledError()))(),
    "str strays": lambda: saying(throw(wl.errors.Diverged("no")))(),
    "str recurses": lambda: saying(recursing)(),
    "str is no text": lambda: saying(lambda: 5)(),
    "str lies": lambda: saying(lambda: Text("text"))(),
    "str is huge": lambda: saying(lambda: "x" * 50_000_000)(),
    "str has no bytes": lambda: saying(lambda: "a \ud800 b")(),
    "str has an address": lambda: ValueError(object()),
    "code raises": lambda: coded(throw(ValueError("no code")))(),
    "code exits": lambda: coded(throw(SystemExit()))(),
    "code lies": lambda: coded(lambda: Text("code"))(),
    "code is huge": lambda: coded(lambda: "c" * 10_000_000)(),
    "code has no bytes": lambda: coded(lambda: "\udfff")(),
    "code is no text": lambda: coded(lambda: [object()])(),
    "no name": lambda: Nameless("nameless"),
    "masked": lambda: Masked("masked"),
    "exit": lambda: SystemExit(7),
    "interrupt": lambda: KeyboardInterrupt("by hand"),
    "close": lambda: GeneratorExit("by hand"),
    "cancelled error": lambda: asyncio.CancelledError(),
    "diverged": lambda: wl.errors.Diverged("says the user"),
    "group": lambda: BaseExceptionGroup("many", [SystemExit(), saying(throw(ValueError()))()]),
    "stop": lambda: StopIteration(5),
    "stop async": lambda: StopAsyncIteration(5),
    "recursion": lambda: RecursionError("maximum recursion depth exceeded while calling a Python object"),
    "cannot step": lambda: errors.CannotStep("says the user", lasting=True),
}

app = wl.Program("hostile")
which: list[str] = [""]


def hostile() -> NoReturn:
    error = HOSTILE[which[0]]()
    raise error


@dataclasses.dataclass(frozen=True)
class Fold:
    n: int


@dataclasses.dataclass(frozen=True)
class Ask(wl.Request[int]):
    n: int


@dataclasses.dataclass(frozen=True)
class Note:
    n: int


@dataclasses.dataclass(frozen=True)
class Tick:
    n: int


class Odd:
    """A value that can be neither stored nor shown."""

    def model_dump(self, *, mode: str) -> Any:
        hostile()

    def __repr__(self) -> str:
        hostile()


@app.reducer()
@dataclasses.dataclass
class Counter:
    n: int = 0

    @wl.on
    def fold(self, event: Fold) -> None:
        self.n += 1
        hostile()

    @wl.on
    def ask(self, event: Ask) -> int:
        self.n += 1
        if event.n:
            return Odd()  # type: ignore[return-value]
        hostile()

    @wl.on
    def note(self, event: Note) -> None:
        self.n += event.n


@app.effect
def odd(value: Any) -> None:
    pass


@app.workflow
async def flow() -> None:
    hostile()


@app.workflow
async def later() -> None:
    await wl.sleep(1)
    hostile()


@app.workflow
async def parent() -> None:
    await flow()


@app.workflow
async def choosy() -> None:
    await wl.wait(Tick, where=lambda event: hostile())


@app.workflow
async def answers() -> Any:
    return Odd()


@app.workflow
async def packs() -> None:
    await odd(Odd())


@app.workflow
async def foreign() -> None:
    class Yields:
        def __await__(self) -> Generator[Any, Any, None]:
            yield HOSTILE[which[0]]()

    await Yields()


@app.workflow
async def again() -> None:
    wl.continue_as_new(takes(Odd()))


@app.workflow
async def takes(value: Any) -> None:
    await wl.sleep(1)


@app.workflow
async def emits() -> None:
    wl.emit(Odd())


@app.workflow
async def schedules() -> None:
    wl.schedule("s", Odd(), every=1)


FLOWS = [flow, later, parent, choosy, answers, packs, foreign, again, emits, schedules]


def tell(world: testing.TestWorld) -> None:
    """The machine takes the next input, and the whole journal replays to the same bytes."""
    before = world.state(Counter).n
    world.send(Note(1))
    assert world.state(Counter).n == before + 1
    world.prove()


@pytest.fixture
def uninterrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a host's thread: a test's own thread lets a KeyboardInterrupt pass."""
    monkeypatch.setattr(context, "interruptible", _Never())


class _Never:
    def get(self) -> bool:
        return False

    def set(self, value: bool) -> None:
        pass

    def reset(self, token: None) -> None:
        pass


@pytest.mark.usefixtures("uninterrupted")
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("given", FLOWS, ids=lambda given: given.name)
def test_in_a_workflow(name: str, given: wl.Workflow[..., Any]) -> None:
    which[0] = name
    with testing.world(app) as world:
        run = world.start(given(), id="r")
        if given is choosy:
            world.send(Tick(1))
        world.advance(2)
        assert world.machine.runs["r"].record.status is RunStatus.FAILED
        with pytest.raises(wl.RunFailed) as caught:
            run.result()
        assert len(str(caught.value)) < 3 * user_errors.TEXT_CHARACTERS_MAX
        tell(world)


@pytest.mark.usefixtures("uninterrupted")
@pytest.mark.parametrize("name", HOSTILE)
def test_in_a_handler(name: str) -> None:
    which[0] = name
    with testing.world(app) as world:
        with pytest.raises(testing.NotTaken):
            world.send(Fold(1))
        assert world.state(Counter).n == 0
        tell(world)


@pytest.mark.usefixtures("uninterrupted")
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("n", [0, 1])
def test_in_an_answer(name: str, n: int) -> None:
    which[0] = name
    with testing.world(app) as world:
        with pytest.raises(errors.Error):
            world.ask(Ask(n))
        assert world.state(Counter).n == 0
        tell(world)


@pytest.mark.usefixtures("uninterrupted")
@pytest.mark.parametrize("name", HOSTILE)
def test_in_a_schedule(name: str) -> None:
    which[0] = name
    with testing.world(app) as world:
        world.schedule("flow", flow(), every=1)
        world.schedule("fold", Fold(1), every=1)
        world.advance(3)
        assert world.state(Counter).n == 0
        failed = [entry for entry in world.journal() if entry.kind is Kind.HANDLER_FAILED]
        assert len(failed) == 3
        tell(world)


@pytest.mark.parametrize("name", HOSTILE)
def test_described(name: str) -> None:
    """By itself: text that can be journaled, and is the same the next time."""
    texts = []
    for _ in range(2):
        error = HOSTILE[name]()
        code, message = user_errors.code_of(error), user_errors.message_of(error)
        assert type(code) is str
        assert type(message) is str
        assert 0 < len(code.encode()) <= 6 * user_errors.CODE_CHARACTERS_MAX
        assert 0 < len(message.encode()) <= 7 * user_errors.TEXT_CHARACTERS_MAX
        texts.append((code, message))
    assert texts[0] == texts[1]


class Refusal(wl.Refused):
    def __str__(self) -> str:
        raise SystemExit


def test_a_refusal_that_says_nothing() -> None:
    rude = wl.Program("rude")

    @rude.reducer()
    @dataclasses.dataclass
    class Rude:
        n: int = 0

        @wl.on
        def ask(self, event: Ask) -> int:
            raise Refusal("no")

    with testing.world(rude) as world, pytest.raises(wl.Refused):
        world.ask(Ask(1))


KEYS: dict[str, tuple[Any, bool]] = {
    "lies": (Text("a"), False),
    "no bytes": ("\ud800", False),
    "no value": (object(), False),
    "a number": (5.5, True),
    "nothing": (None, True),
    "a list": ([1], True),
}


@pytest.mark.parametrize("name", KEYS)
def test_keys_of_cells(name: str) -> None:
    """A key is whatever an event's own code makes of it."""
    key, taken = KEYS[name]
    keyed = wl.Program("keyed")

    @dataclasses.dataclass(frozen=True)
    class Keyed:
        name: str

        def __post_init__(self) -> None:
            object.__setattr__(self, "name", key)

    @keyed.reducer(key="name")
    @dataclasses.dataclass
    class Cell:
        n: int = 0

        @wl.on
        def keyed(self, event: Keyed) -> None:
            self.n += 1

    home = ids.Address(ids.UniverseId(b"u" * 16), ids.WorldId(b"w" * 16))
    machine = Machine(keyed)
    data = b"\xa1\x64name\x61a"
    for number in (1, 2):
        item = inbox.InboxEvent("Keyed", payload.inline(data))
        stepped = kernel_step.step(
            machine, step_records.Input(item, data), step_records.StepContext(home, number, number), PARTS
        )
        assert (stepped.dead == "") is taken
    assert len(machine.cells) == taken


def test_a_state_that_cannot_be_read_back_fails_its_own_events_only() -> None:
    broken = [False]
    picky = wl.Program("picky")

    @picky.reducer(key="n")
    @dataclasses.dataclass
    class Picky:
        n: int = 0

        def __post_init__(self) -> None:
            if broken[0] and self.n:
                raise SystemExit("not now")

        @wl.on
        def note(self, event: Note) -> None:
            self.n += 1
            if broken[0] and event.n == 1:
                raise ValueError("after a change")

    with testing.world(picky, drops=False, twice=False) as world:
        world.send(Note(1))
        broken[0] = True
        for _ in range(2):
            with pytest.raises(testing.NotTaken):
                world.send(Note(1))
        world.send(Note(2))
        broken[0] = False
        world.send(Note(1))
        assert (world.state(Picky, "1").n, world.state(Picky, "2").n) == (2, 1)
