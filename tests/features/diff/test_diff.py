"""`world.diff`: two heights of a world, field by field; effects of every fate; and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

import worldline as wl
from tests.features.diff import lives
from tests.kernel.test_receipts import receipt
from tests.kits import kit as kits
from tests.kits.kit import Kit
from worldline import testing
from worldline.codec import structs
from worldline.features.diff.effect_history import Effects
from worldline.features.diff.records import CellDiff, Diff, EffectSide, Field, RunDiff, RunSide
from worldline.kernel import user_values
from worldline.keys import snapshots as snapshot_keys
from worldline.model import ids, journal
from worldline.model.journal import Kind
from worldline.store import kv


@dataclass(frozen=True)
class Bought:
    account: str
    thing: str
    cents: int


@dataclass(frozen=True)
class Approved:
    by: str


def shop() -> wl.Program:
    app = wl.Program("shop")

    @app.reducer(key="account")
    @dataclass
    class Cart:
        cents: int = 0
        lines: list[dict[str, Any]] = field(default_factory=list)

        @wl.on
        def bought(self, event: Bought) -> None:
            self.cents += event.cents
            self.lines.append({"thing": event.thing, "cents": event.cents})

    @app.effect
    async def charge(account: str, cents: int) -> str:
        return f"{account} paid {cents}"

    @app.effect(retry=wl.Retry(attempts=1, on_exhausted="park"))
    async def ship(thing: str) -> str:
        raise OSError(f"no {thing}")

    @app.workflow
    async def order(account: str, cents: int) -> str:
        paid = await charge(account, cents)
        event = await wl.wait(Approved)
        return f"{paid}, {event.by}"

    @app.workflow
    async def send(thing: str) -> str:
        return await ship(thing)

    @app.workflow
    async def both(thing: str) -> str:
        shipped = wl.start(ship(thing))
        await wl.wait(Approved)
        shipped.cancel("not wanted")
        await wl.wait(Approved)
        return "done"

    return app


async def bought(world: wl.World, *events: Bought) -> int:
    for each in events:
        await (await world.send(each)).applied(20)
    return (await world.head()).height


async def test_two_heights_of_one_world(kit: Kit) -> None:
    """By a client without any program; on every engine."""
    app = shop()
    host = await kit.process(app)
    there = await host.universe.ensure("w", app)
    low = await bought(there, Bought("ann", "pen", 3), Bought("bob", "ink", 5))
    await there.snapshot()
    await kits.begin(there, app.workflows["order"]("ann", 3), id="o")
    await bought(there, Bought("ann", "cup", 4), Bought("cid", "pen", 3))
    await (await there.send(Approved("eve"), to="o")).applied(20)
    assert await (await there.attach("o")).result(20) == "ann paid 3, eve"
    top = await there.head()
    await host.close()
    world = (await kit.process()).universe.world("w")
    found = await world.diff(at=low)
    assert (found.ancestor, found.step, found.height, found.same) == ("w", 2, low, False)
    assert found.cells == [
        CellDiff(
            "Cart",
            "ann",
            "changed",
            fields=(
                Field(("cents",), "changed", 3, 7),
                Field(("lines", 1), "added", None, {"thing": "cup", "cents": 4}),
            ),
        ),
        CellDiff("Cart", "cid", "added", None, {"cents": 3, "lines": [{"thing": "pen", "cents": 3}]}),
    ]
    ended = RunSide("order", "finished", "ann paid 3, eve", None, None, None, [], 0)
    assert found.runs == [RunDiff("o", "added", None, ended)]
    [effect] = found.effects
    assert (effect.run, effect.operation, effect.change, effect.left) == ("o", 1, "added", None)
    assert effect.right == EffectSide("charge", {"account": "ann", "cents": 3}, "ok", "ann paid 3")
    left, right = found.entries.left, found.entries.right
    assert (left.world, left.step, left.height, left.first, left.count, left.kinds) == ("w", 2, low, None, 0, {})
    assert (right.world, right.step, right.height, right.first) == ("w", top.step, top.height, low + 1)
    assert right.count == sum(right.kinds.values()) == top.height - low
    assert (right.kinds["event"], right.kinds["run_started"], right.kinds["effect_result"]) == (3, 1, 1)
    assert await world.diff(at=low, to=top.height) == found
    assert await world.diff(world, at=low) == found
    back = await world.diff(to=low)
    assert [(each.key, each.change, each.left) for each in back.cells if each.change != "changed"] == [
        ("cid", "removed", found.cells[1].right)
    ]
    assert [(each.change, each.left, each.right) for each in back.runs] == [("removed", ended, None)]
    assert back.entries.left == right
    assert (await world.diff(world)).same


async def test_inside_a_step_and_from_the_beginning(memory_kit: Kit) -> None:
    app = shop()
    world = await (await memory_kit.process(app)).universe.ensure("w", app)
    low = await bought(world, Bought("ann", "pen", 3))
    await kits.begin(world, app.workflows["order"]("ann", 3), id="o")
    entries = await kits.entries(world)
    inside = next(entry.height for entry in entries if not entry.chain)
    found = await world.diff(at=0, to=inside)
    assert (found.height, found.entries.right.height) == (0, low), "the step end below"
    assert [each.key for each in found.cells] == ["ann"]
    waiting = (await world.diff(at=low)).runs[0].right
    assert waiting is not None
    assert (waiting.status, waiting.workflow) == ("running", "order")


async def test_what_is_refused(memory_kit: Kit) -> None:
    app = shop()
    universe = (await memory_kit.process(app)).universe
    world = await universe.ensure("w", app)
    await bought(world, Bought("ann", "pen", 3))
    other = await universe.ensure("x", app)
    with pytest.raises(wl.BadInput, match=r"compared with another world, or with itself at a height: pass at= or to="):
        await world.diff()
    for height in (2, -1):
        with pytest.raises(wl.BadInput, match=f"world 'w' has no height {height}: its head is at height 1"):
            await world.diff(at=height)
    wrong: Any = "one"
    with pytest.raises(wl.BadInput, match="a height is a number, not 'one'"):
        await world.diff(to=wrong)
    wrong = 1
    with pytest.raises(wl.BadInput, match=r"compared with a world, not 1; heights are given by at= and to="):
        await world.diff(wrong)
    with pytest.raises(wl.BadInput, match="worlds 'w' and 'x' have no common ancestor"):
        await world.diff(other)
    with pytest.raises(wl.NotFound, match="no world 'y'"):
        await world.diff(universe.world("y"))
    async with wl.open("memory://", host=app) as elsewhere:
        stranger = await elsewhere.ensure("w", app)
        with pytest.raises(wl.BadInput, match="in another universe"):
            await world.diff(stranger)


async def test_below_the_oldest_snapshot(memory_kit: Kit) -> None:
    app = shop()
    host = await memory_kit.process(app)
    world = await host.universe.ensure("w", app)
    height = await bought(world, Bought("ann", "pen", 3), Bought("ann", "ink", 3))
    await world.snapshot()
    at = await world._handle.address()
    page = (await host.engine.read(kv.Range(*snapshot_keys.snapshots(at)))).page(0)
    key, raw = page.items[0]
    batch = kv.Batch()
    batch.expect(key, raw)
    batch.delete(key)
    await host.engine.commit(batch)
    with pytest.raises(wl.NotFound, match="height 1: its state is not kept any more: states are kept from height 2 on"):
        await world.diff(at=1)
    assert (await world.diff(at=height)).same


# --- Effects of every fate -------------------------------------------------------------------------------------------


def lived(app: wl.Program, script: wl.Script, *acts: Any) -> tuple[lives.Lived, list[int]]:
    """A life, and the step that each act ended with."""
    marks = []
    with testing.world(app, script) as world:
        for act in acts:
            act(world)
            marks.append(world.head.step)
        return lives.Lived(app, world), marks


def since(app: wl.Program, script: wl.Script, first: Any, then: Any) -> Diff:
    life, (low, top) = lived(app, script, first, then)
    return lives.diff(life, life, since=low, at=low, to=top)


def statuses(found: Diff) -> list[Any]:
    return [
        (each.change, each.left and (each.left.status, each.left.answer), each.right and each.right.status)
        for each in found.effects
    ]


def test_an_effect_that_was_open_is_answered() -> None:
    app = shop()
    script = wl.Script().on(app.effects["charge"], wl.Script.never())
    found = since(
        app,
        script,
        lambda world: world.start(app.workflows["order"]("ann", 3), id="o"),
        lambda world: world.step(receipt(next(iter(world.machine.work.open))), user_values.dump("forged")),
    )
    [effect] = found.effects
    args = {"account": "ann", "cents": 3}
    assert (effect.change, effect.left) == ("changed", EffectSide("charge", args, "open"))
    assert effect.right == EffectSide("charge", args, "ok", "forged")
    [run] = found.runs
    assert [each.path for each in run.fields] == [("operations",), ("done",), ("waits_for",)]
    assert (run.fields[2].left, run.fields[2].right) == (["effect charge"], ["event Approved"])


def test_parked_retried_and_answered_by_hand() -> None:
    app = shop()
    ship = app.effects["ship"]
    script = wl.Script().on(ship, OSError("no pen"))

    def start(world: testing.TestWorld) -> None:
        world.start(app.workflows["send"]("pen"), id="s")

    assert statuses(since(app, script, lambda world: None, start)) == [("added", None, "parked")]
    by_hand = since(app, script, start, lambda world: world.answer(ship, "sent"))
    assert statuses(by_hand) == [("changed", ("parked", None), "ok")]
    assert by_hand.effects[0].right is not None
    assert by_hand.effects[0].right.answer == "sent"
    assert by_hand.runs[0].fields[0] == Field(("status",), "changed", "running", "finished")
    failed = since(app, script, start, lambda world: world.answer(ship, error="lost"))
    assert failed.effects[0].right == EffectSide("ship", {"thing": "pen"}, "error", {"message": "lost"})
    answered = since(app, script, start, lambda world: world.attach("s").answer(1, "sent"))
    assert answered.effects[0].right == EffectSide("ship", {"thing": "pen"}, "ok", "sent")


def test_given_up_and_answered_too_late() -> None:
    app = shop()
    script = wl.Script().on(app.effects["ship"], wl.Script.never())
    intents: list[ids.IntentId] = []

    def start(world: testing.TestWorld) -> None:
        world.start(app.workflows["both"]("pen"), id="b")
        intents.extend(world.machine.work.open)

    def give_up(world: testing.TestWorld) -> None:
        world.send(Approved("x"), to="b")
        assert Kind.EFFECT_CANCELLED in [entry.kind for entry in world.journal()]

    def too_late(world: testing.TestWorld) -> None:
        give_up(world)
        world.step(receipt(intents[0]), user_values.dump("forged"))
        assert world.journal()[-1].kind is Kind.LATE_ANSWER

    for then in (give_up, too_late):
        intents.clear()
        assert statuses(since(app, script, start, then)) == [("changed", ("open", None), "cancelled")]


def test_asked_for_and_given_up_in_one_step() -> None:
    """No row ever says that it was open."""
    app = wl.Program("p")

    @app.effect
    async def ship(thing: str) -> str:
        return thing

    @app.workflow
    async def never() -> None:
        wl.start(ship("pen")).cancel("not wanted")
        await wl.wait(Approved)

    found = since(app, wl.Script(), lambda world: None, lambda world: world.start(never(), id="n"))
    assert statuses(found) == [("added", None, "cancelled")]


def test_a_receipt_that_its_step_calls_late_answers_nothing() -> None:
    """While work that was given up is still to be closed, its intent is known and waits for nothing."""
    at = ids.Address(ids.UniverseId(bytes(16)), ids.WorldId(bytes(16)))
    params = user_values.pack([user_values.dump({"n": 1}), b""])
    intent = ids.intent_id(at, step=1, ordinal=0, kind="e", params=params)
    asked = journal.JournalEntry(1, 1, Kind.EFFECT_REQUESTED, 0, user_values.pack([0, "e", "r", 0, params, 0]))
    result = journal.JournalEntry(2, 2, Kind.EFFECT_RESULT, 0, structs.encode(receipt(intent)))
    late = journal.JournalEntry(3, 2, Kind.LATE_ANSWER, 0, b"")
    for entries, status in (([result, late], "open"), ([result], "ok")):
        seen = Effects([at], lambda _: None)
        seen.take([asked], lambda _: None)
        seen.take(entries, lambda _: None)
        [[effect]] = seen.seen.values()
        assert effect.status == status
        assert (effect.name, effect.args) == ("e", {"n": 1})


def test_answers_are_compared_side_by_side() -> None:
    """Two lives that are the same up to where the outside answers otherwise; 1 and True are two answers."""
    app = wl.Program("p")

    @app.effect
    async def guess(text: str) -> Any:
        return text

    @app.workflow
    async def flow() -> Any:
        return [await guess("a"), await guess("b")]

    def answers(second: Any) -> Any:
        return lambda text: second if text == "b" else 0

    sides = []
    for answer in (1, True):
        script = wl.Script().on(guess, answers(answer))
        sides.append(lived(app, script, lambda world: world.run(flow(), id="r"))[0])
    left, right = sides
    common = sum(one.head() == other.head() for one, other in zip(left.steps, right.steps, strict=True))
    assert 0 < common < len(left.steps)
    found = lives.diff(left, right, since=common, at=len(left.steps), to=len(right.steps))
    [effect] = found.effects
    assert (effect.run, effect.operation, effect.change) == ("r", 2, "changed")
    assert (effect.left, effect.right) == (
        EffectSide("guess", {"text": "b"}, "ok", 1),
        EffectSide("guess", {"text": "b"}, "ok", True),
    )
    [run] = found.runs
    assert run.fields == (Field(("result", 1), "changed", 1, True),)


async def test_large_values_are_named_by_their_digest(memory_kit: Kit) -> None:
    app = shop()
    host = await memory_kit.process(app)
    world = await host.universe.ensure("w", app)
    await kits.begin(world, app.workflows["order"]("a" * 40_000, 1), id="o")
    await (await world.send(Approved("x"), to="o")).applied(20)
    await (await world.attach("o")).result(20)
    [effect] = (await world.diff(at=0)).effects
    assert effect.right is not None
    assert effect.right.status == "ok"
    for value in (effect.right.args, effect.right.answer):
        assert sorted(value) == ["sha256", "size"]
        assert value["size"] > 40_000


async def test_only_what_changed_is_compared(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """A world of a thousand cells, of which one changes: one cell is decoded."""
    from worldline.features.diff import side_comparison  # noqa: PLC0415

    app = shop()
    world = await (await memory_kit.process(app)).universe.ensure("w", app)
    for number in range(1_000):
        await world.send(Bought(f"a{number}", "pen", 1))
    low = await bought(world, Bought("a7", "pen", 1))
    await bought(world, Bought("a7", "ink", 1))
    looked: list[bytes] = []
    cell = side_comparison._cell

    def counted(key: bytes, *rows: Any) -> CellDiff | None:
        looked.append(key)
        return cell(key, *rows)

    monkeypatch.setattr(side_comparison, "_cell", counted)
    assert [each.key for each in (await world.diff(at=low)).cells] == ["a7"]
    assert len(looked) == 1
