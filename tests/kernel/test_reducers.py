"""Reducers: what they take, how they are keyed, what they may ask for, and what happens when they raise."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pydantic
import pytest

import worldline as wl
from tests.kernel import shop
from worldline import testing
from worldline.codec import structs
from worldline.kernel import user_values
from worldline.kernel.authoring import reducers
from worldline.kernel.rows.row_records import JournaledFailure
from worldline.model import inbox, payload
from worldline.model.journal import Kind


def test_one_cell_for_each_key() -> None:
    with testing.world(shop.app) as world:
        world.send(shop.Deposited("a", 5))
        world.send(shop.Deposited("b", 1))
        world.send(shop.Deposited("a", 2))
        assert world.state(shop.Account, "a") == shop.Account(7, [5, 2])
        assert world.state(shop.Account, "b").cents == 1
        assert world.state(shop.Account, "nobody") == shop.Account()
        assert world.state(shop.Account, "a", at=2).cents == 5
        world.prove()


def test_requests_are_answered_refused_and_raised() -> None:
    with testing.world(shop.app) as world:
        world.send(shop.Deposited("a", 5))
        assert world.ask(shop.Withdraw("a", 3)) == 2
        before = world.head.state
        with pytest.raises(wl.Refused, match="insufficient"):
            world.ask(shop.Withdraw("a", 3))
        assert world.head.state == before
        assert world.state(shop.Account, "a").cents == 2
        assert world.dead == []


def test_a_request_that_nobody_handles_is_answered_too() -> None:
    @dataclass(frozen=True)
    class Unknown(wl.Request[int]):
        number: int

    with testing.world(shop.app) as world, pytest.raises(wl.errors.Failed, match="nothing here takes an Unknown"):
        world.ask(Unknown(1))


def test_a_handler_that_raises_leaves_everything_as_it_was() -> None:
    with testing.world(shop.app) as world:
        world.send(shop.Deposited("a", 5))
        before = world.head.state
        with pytest.raises(testing.NotTaken, match=r"Account\.deposited raised ValueError: a deposit"):
            world.send(shop.Deposited("a", -1))
        with pytest.raises(testing.NotTaken):
            world.send(shop.Deposited("new", -1))
        assert world.head.state == before
        assert world.state(shop.Account, "a") == shop.Account(5, [5])
        assert ("Account", "new") not in world.machine.cells
        failed = [entry for entry in world.journal() if entry.kind is Kind.HANDLER_FAILED]
        why = structs.decode(JournaledFailure, failed[0].payload)
        assert (why.code, why.message) == ("ValueError", "ValueError: a deposit cannot be negative")
        world.send(shop.Deposited("a", 1))
        world.prove()


@pytest.mark.parametrize(
    ("schema", "data", "reason"),
    [
        ("Deposited", user_values.dump({"account": "a"}), "cents"),
        ("Deposited", user_values.dump({"account": "a", "cents": "five"}), "cents"),
        ("Deposited", b"\xff\xff", "not canonical"),
        ("Deposited", b"", "canonical"),
        ("Nonsense", user_values.dump({}), "nothing here takes a Nonsense"),
    ],
)
def test_undecodable_and_unknown_events_are_rejected(schema: str, data: bytes, reason: str) -> None:
    with testing.world(shop.app) as world:
        stepped = world.step(inbox.InboxEvent(schema, payload.inline(data)), data)
        assert [draft.kind for draft in stepped.drafts] == [Kind.EVENT, Kind.UNDECODABLE_INPUT]
        assert reason in stepped.dead
        assert world.head.state == bytes(32)
        world.prove()


def test_undecodable_items_and_unknown_commands_are_rejected() -> None:
    with testing.world(shop.app) as world:
        stepped = world.step(None, b"garbage", error="not an item")
        assert [draft.kind for draft in stepped.drafts] == [Kind.UNDECODABLE_INPUT]
        assert stepped.dead == "not an item"
        stepped = world.step(inbox.Control("dance", payload.EMPTY), b"\xf6")
        assert [draft.kind for draft in stepped.drafts] == [Kind.CONTROL, Kind.UNDECODABLE_INPUT]
        stepped = world.step(inbox.Control("run", payload.EMPTY), b"\xf6")
        assert [draft.kind for draft in stepped.drafts] == [Kind.CONTROL, Kind.UNDECODABLE_INPUT]
        assert stepped.dead
        world.prove()


class StructEvent(msgspec.Struct, frozen=True):
    name: str
    numbers: list[int] = []


class ModelEvent(pydantic.BaseModel):
    name: str
    numbers: list[int] = []


@dataclass(frozen=True)
class PlainEvent:
    name: str
    numbers: list[int] = field(default_factory=list)


class StructState(msgspec.Struct):
    total: int = 0
    by_name: dict[str, int] = {}


class ModelState(pydantic.BaseModel):
    total: int = 0
    by_name: dict[str, int] = {}


@dataclass
class PlainState:
    total: int = 0
    by_name: dict[str, int] = field(default_factory=dict)


def folding(state: Any, event: Any) -> Any:
    """A reducer of one kind of class that folds events of another."""

    def folded(self: Any, each: Any) -> None:
        assert type(each) is event
        self.total += sum(each.numbers)
        self.by_name[each.name] = self.by_name.get(each.name, 0) + 1

    folded.__annotations__ = {"each": event}
    made = type(state)("Fold", (state,), {"folded": wl.on(folded), "__module__": __name__})
    return dataclass(made) if state is PlainState else made


@pytest.mark.parametrize("event", [StructEvent, ModelEvent, PlainEvent])
@pytest.mark.parametrize("state", [StructState, ModelState, PlainState])
def test_dataclasses_structs_and_models_alike(event: Any, state: Any) -> None:
    app = wl.Program("alike")
    fold = app.reducer()(folding(state, event))
    with testing.world(app) as world:
        for name in ("bb", "a", "bb"):
            world.send(event(name=name, numbers=[1, 2]))
        world.crash()
        found = world.state(fold)
        assert (found.total, found.by_name) == (9, {"a": 1, "bb": 2})
        world.prove()


class Moved(pydantic.BaseModel):
    robot: str
    by: int


class Where(pydantic.BaseModel, wl.Request[int]):
    robot: str


def test_requests_and_keys_of_models() -> None:
    app = wl.Program("robots")

    @app.reducer(key="robot")
    class Robot(pydantic.BaseModel):
        at: int = 0

        @wl.on
        def moved(self, event: Moved) -> None:
            self.at += event.by

        @wl.on
        def where(self, event: Where) -> int:
            return self.at

    with testing.world(app) as world:
        world.send(Moved(robot="r2", by=4))
        assert world.ask(Where(robot="r2")) == 4
        assert world.ask(Where(robot="other")) == 0


@dataclass(frozen=True)
class Started:
    name: str


@dataclass(frozen=True)
class Echo:
    name: str
    left: int = 0


@dataclass(frozen=True)
class Undo:
    name: str


def handlers() -> tuple[wl.Program, Any]:
    app = wl.Program("handlers")

    @app.workflow
    async def nap(name: str) -> str:
        await wl.sleep(1)
        return name

    @app.reducer()
    @dataclass
    class Log:
        names: list[str] = field(default_factory=list)

        @wl.on
        def started(self, event: Started) -> None:
            self.names.append(f"started {event.name}")
            wl.emit(Echo(event.name, 2))
            wl.emit(Echo(event.name))
            wl.after(60, Undo(event.name))
            wl.after(30, Undo("cancelled")).cancel()
            _ = wl.start(nap(event.name), id=f"nap-{event.name}")
            _ = wl.start(nap("nameless"))

        @wl.on
        def echo(self, event: Echo) -> None:
            self.names.append(f"echo {event.name} {event.left}")
            if event.left:
                wl.emit(Echo(event.name, event.left - 1))

        @wl.on
        def undo(self, event: Undo) -> None:
            self.names.append(f"undo {event.name}")

    return app, Log


def test_what_a_handler_asks_for_is_done_in_order() -> None:
    app, log = handlers()
    with testing.world(app) as world:
        world.send(Started("x"))
        assert world.state(log).names == ["started x", "echo x 2", "echo x 0", "echo x 1", "echo x 0"]
        assert world.attach("nap-x").result() == "x"
        world.crash()
        world.advance(100)
        assert world.state(log).names[-1] == "undo x"
        assert "undo cancelled" not in world.state(log).names
        assert len(world.machine.runs) == 2
        world.prove()


def test_nothing_a_failed_handler_asked_for_happens() -> None:
    app = wl.Program("failing")

    @app.reducer(name="B")
    @dataclass
    class Second:
        @wl.on
        def started(self, event: Started) -> None:
            raise RuntimeError("no")

    @app.reducer(name="A")
    @dataclass
    class First:
        count: int = 0

        @wl.on
        def started(self, event: Started) -> None:
            self.count += 1
            wl.emit(Echo("x"))
            wl.after(1, Echo("x"))

        @wl.on
        def echo(self, event: Echo) -> None:
            self.count += 100

    with testing.world(app) as world:
        with pytest.raises(testing.NotTaken, match=r"B\.started raised RuntimeError: no"):
            world.send(Started("x"))
        world.advance(10)
        assert world.state(First).count == 0
        assert [entry.kind.name for entry in world.journal()] == ["EVENT", "HANDLER_FAILED"]


def test_two_handlers_of_one_event_and_one_event_raised_twice_start_runs_of_their_own() -> None:
    app = wl.Program("twice")

    @app.workflow
    async def nap() -> str:
        await wl.sleep(1)
        return str(wl.uuid())

    @app.reducer()
    @dataclass
    class Left:
        @wl.on
        def echo(self, event: Echo) -> None:
            _ = wl.start(nap())

    @app.reducer()
    @dataclass
    class Right:
        ids: list[str] = field(default_factory=list)

        @wl.on
        def echo(self, event: Echo) -> None:
            self.ids.append(str(wl.uuid()))
            _ = wl.start(nap())

        @wl.on
        def started(self, event: Started) -> None:
            wl.emit(Echo("x"))
            wl.emit(Echo("x"))

    with testing.world(app) as world:
        world.send(Started("x"))
        assert len(world.machine.runs) == 4
        world.advance(2)
        assert len({run.record.data for run in world.machine.runs.values()}) == 4
        assert len(set(world.state(Right).ids)) == 2


@pytest.mark.parametrize("kind", [SystemExit, RecursionError, AssertionError, wl.Cancelled, wl.Refused], ids=repr)
def test_whatever_a_handler_raises_fails_that_event_alone(kind: type[BaseException]) -> None:
    app = wl.Program("raises")

    @app.reducer()
    @dataclass
    class Bad:
        @wl.on
        def started(self, event: Started) -> None:
            raise kind("no")

    with testing.world(app) as world, pytest.raises(testing.NotTaken, match=kind.__name__):
        world.send(Started("x"))


def test_an_event_type_with_code_of_its_own_may_refuse() -> None:
    app = wl.Program("checks")

    @dataclass(frozen=True)
    class Positive:
        number: int

        def __post_init__(self) -> None:
            assert self.number > 0, "must be positive"

    @app.reducer()
    @dataclass
    class Sum:
        total: int = 0

        @wl.on
        def positive(self, event: Positive) -> None:
            self.total += event.number

    with testing.world(app) as world:
        data = user_values.dump({"number": -1})
        stepped = world.step(inbox.InboxEvent("Positive", payload.inline(data)), data)
        assert "must be positive" in stepped.dead


def test_an_odd_refusal_of_an_event_type_is_journaled_all_the_same() -> None:
    app = wl.Program("checks")

    @dataclass(frozen=True)
    class Odd:
        number: int

        def __post_init__(self) -> None:
            raise ValueError("\ud800" * 10_000)

    @app.reducer()
    @dataclass
    class Sum:
        @wl.on
        def odd(self, event: Odd) -> None: ...

    with testing.world(app) as world:
        data = user_values.dump({"number": -1})
        world.step(inbox.InboxEvent("Odd", payload.inline(data)), data)
        assert [entry.kind for entry in world.journal()] == [Kind.EVENT, Kind.UNDECODABLE_INPUT]
        world.prove()


def left_as(value: Any, *, scalars: bool) -> wl.Program:
    app = wl.Program("leaves")

    @dataclass
    class Left:
        number: int = 0

        @wl.on
        def started(self, event: Started) -> None:
            self.number = value

    @dataclass
    class Longer(Left):
        names: list[str] = field(default_factory=list)

        started = Left.started

    app.reducer(name="Left")(Left if scalars else Longer)
    return app


@pytest.mark.parametrize(
    "value", [0.5, "text", None, [1], object(), 2**70, float("nan")], ids=lambda each: str(each)[:8]
)
@pytest.mark.parametrize("scalars", [True, False])
def test_a_state_that_could_not_be_read_back_is_refused_at_once(value: Any, scalars: bool) -> None:
    with testing.world(left_as(value, scalars=scalars)) as world:
        with pytest.raises(testing.NotTaken, match=r"Left\.started raised"):
            world.send(Started("x"))
        assert world.head.state == bytes(32)


def test_a_cell_is_what_its_bytes_say_also_before_it_is_restored() -> None:
    app = wl.Program("order")

    @app.reducer()
    @dataclass
    class Names:
        seen: dict[str, int] = field(default_factory=dict)
        order: list[str] = field(default_factory=list)

        @wl.on
        def started(self, event: Started) -> None:
            self.seen[event.name] = len(self.seen)
            self.order = list(self.seen)  # in the order of the dict: its own, or that of the bytes?

    with testing.world(app) as world:
        for name in ("zz", "b", "aaa", "c"):
            world.send(Started(name))  # done twice: on the warm cell, and on one read from its bytes
        assert world.state(Names).order == ["b", "zz", "aaa", "c"]
        world.prove()


@dataclass
class Plain:
    zeta: int = 0
    _alpha: str = "a"
    much: bytes = b""
    often: float = 0.5
    sure: bool = False

    @wl.on
    def added(self, event: shop.Deposited) -> None: ...


@dataclass(slots=True)
class Slotted:
    zeta: int = 0
    alpha: str = "a"

    @wl.on
    def added(self, event: shop.Deposited) -> None: ...


class Renamed(msgspec.Struct, rename="camel", omit_defaults=True):
    so_much: int = 0
    so_often: int = 1

    @wl.on
    def added(self, event: shop.Deposited) -> None: ...


@pytest.mark.parametrize(
    "value",
    [Plain(), Plain(-(2**63), "ä" * 5_000, bytes(70_000), -0.0, True), Slotted(7, ""), Renamed(), Renamed(5, 6)],
    ids=lambda value: type(value).__name__,
)
def test_the_short_way_to_a_cells_bytes_leads_to_the_same(value: Any) -> None:
    reducer = reducers.complete(reducers.declare(type(value), key=None, name="r"), {"shop": shop})
    assert reducer.is_canonical(value)
    assert reducer.dump(value, is_canonical=True) == user_values.dump(value)
    assert user_values.load(type(value), reducer.dump(value, is_canonical=True)) == value


def test_a_cell_has_nothing_besides_its_fields() -> None:
    app = wl.Program("besides")

    @app.reducer()
    @dataclass
    class Secretive:
        count: int = 0

        @wl.on
        def started(self, event: Started) -> None:
            self.count += getattr(self, "hidden", 1)
            self.hidden = 100

    with testing.world(app, twice=False) as world:
        world.send(Started("x"))
        world.send(Started("x"))
        assert world.state(Secretive).count == 2
        world.prove()


def test_handlers_of_one_event_are_called_in_the_order_of_their_reducers_names() -> None:
    app = wl.Program("order")

    def declare(name: str) -> None:
        @app.reducer(name=name)
        @dataclass
        class Any:
            @wl.on
            def started(self, event: Started) -> None:
                wl.emit(Undo(name))

    for name in ("C", "A", "B"):
        declare(name)
    with testing.world(app) as world:
        world.send(Started("x"))
        raised = [entry.payload[-1:] for entry in world.journal() if entry.kind is Kind.EVENT_RAISED]
        assert raised == [b"A", b"B", b"C"]


@pytest.mark.parametrize(
    ("value", "why"),
    [(math.nan, "NaNs are not allowed; use None"), (2**80, "integer out of range; an int has 64 bits: use text")],
)
def test_a_field_that_cannot_be_stored_is_named(value: Any, why: str) -> None:
    app = wl.Program("fields")

    @dataclass
    class Set:
        pass

    @app.reducer
    @dataclass
    class Cell:
        count: int = 0
        rate: float = 0.0
        large: int = 0

        @wl.on
        def set(self, event: Set) -> None:
            if type(value) is float:
                self.rate = value
            else:
                self.large = value

    name = "rate" if type(value) is float else "large"
    said = rf"Cell.set raised Unstorable: Cell cannot be stored: field {name}: .*{why}"
    with testing.world(app) as world, pytest.raises(testing.NotTaken, match=said):
        world.send(Set())
